"""Builds the images of `packages/monarch-jobs/images` for their platforms and pushes them to a registry: the last step of a release.

    python -m tools.release_images REGISTRY [--nightly] [--print] [IMAGE...]

REGISTRY is the prefix of names, such as `registry.example/team`. The tag is the version of monarch-jobs, or `nightly`. `--print` shows
the commands and runs nothing. `dist/` has the wheels (`hatch run wheels`), monarch-core for each platform. It needs docker with buildx.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

from tools.project import DIST, JOBS, ROOT

# The machine of each platform, in the names of wheels.
MACHINES = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}


class Image(NamedTuple):
    """An image. `suffix` is the end of its tag."""

    name: str
    repository: str
    suffix: str
    platforms: tuple[str, ...]


IMAGES = (
    Image("slim", "monarch", "", ("linux/amd64", "linux/arm64")),
    # PyTorch's image with ROCm is for amd64 only, that with CUDA in most releases.
    Image("cuda", "monarch", "-cuda", ("linux/amd64",)),
    Image("rocm", "monarch", "-rocm", ("linux/amd64",)),
    Image("operator", "monarch-operator", "", ("linux/amd64", "linux/arm64")),
)


def command(image: Image, registry: str, tag: str) -> list[str]:
    """Builds and pushes an image for all its platforms under one name."""
    file = JOBS / "images" / f"{image.name}.Dockerfile"
    name = f"{registry}/{image.repository}:{tag}{image.suffix}"
    platforms = ",".join(image.platforms)
    return ["docker", "buildx", "build", "--platform", platforms, "--file", str(file.relative_to(ROOT)), "--tag", name, "--push", "."]


def missing(images: list[Image], dist: Path) -> list[str]:
    """The missing requirements of these images, a sentence each."""
    found = [] if shutil.which("docker") else ["there is no docker here"]
    for platform in dict.fromkeys(platform for image in images for platform in image.platforms):
        if not list(dist.glob(f"monarch_core-*{MACHINES[platform]}.whl")):
            found.append(f"{dist} has no wheel of monarch-core for {platform}")
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.release_images")
    parser.add_argument("registry", metavar="REGISTRY")
    parser.add_argument("names", nargs="*", metavar="IMAGE", help=f"of {', '.join(image.name for image in IMAGES)}; by default all")
    parser.add_argument("--nightly", action="store_true")
    parser.add_argument("--print", action="store_true", dest="is_printed")
    given = parser.parse_intermixed_args(arguments)
    known = {image.name: image for image in IMAGES}
    if unknown := [name for name in given.names if name not in known]:
        parser.error(f"there is no image '{unknown[0]}': {', '.join(known)}")
    images = [known[name] for name in given.names] or list(IMAGES)
    tag = "nightly" if given.nightly else tomllib.loads((JOBS / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    commands = [command(image, given.registry.rstrip("/"), tag) for image in images]
    if given.is_printed:
        print("\n".join(map(shlex.join, commands)))
        return 0
    if lacking := missing(images, DIST):
        print("\n".join(lacking), file=sys.stderr)
        return 1
    for argv in commands:
        print(shlex.join(argv), flush=True)
        if code := subprocess.run(argv, cwd=ROOT, check=False).returncode:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
