"""Builds images from their Dockerfiles without an engine: the steps of the files run in a root file system of Debian.

Debootstrap replaces the base of these files, `python:VERSION-slim-RELEASE`: the same release of Debian from the archive of this machine's
apt, with its own Python as `python`, its pip and no compiler. So the minor version of Python is Debian's.

The base, the steps that use nothing of the checkout, the wheels and the images are kept in the user's cache folder (kept.py).
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools import build_wheels
from tools.k8s.dockerfile import Dockerfile, Step, read
from tools.k8s.images import write_root_image
from tools.k8s.kept import Kept
from tools.project import DIST, ROOT, files

# Variables and packages of the base, besides those of the Dockerfiles.
ENV = ("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8")
_PACKAGES = "python3,python3-pip"
_BASE = re.compile(r"python:3\.\d+-slim-(?P<release>[a-z]+)")
_STEP_TIMEOUT_S = 900.0
_LAST = 2000
_ARCHIVE = "root.tar"
_IMAGE = "image.tar"
# Seconds: an image of other sources is only used by processes that use it now.
_KEPT_S = 3600.0
_BASE_STEP = Step(
    "set -e; ln -s ../../bin/python3 /usr/local/bin/python; rm -f /usr/lib/python3*/EXTERNALLY-MANAGED;"
    " rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/* /usr/share/doc/* /usr/share/man/*",
    (),
)
# Processes and mounts of a step end with it.
_APART = ("unshare", "--mount", "--pid", "--fork", "--kill-child")
# $1 is the root, $2 the command, $3 a file of certificates or empty; then pairs of a folder and its path inside.
_ENTER = """
set -e
root=$1 command=$2 certificates=$3
shift 3
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/tmp"
mount --bind /etc/resolv.conf "$root/etc/resolv.conf"
[ -z "$certificates" ] || cp "$certificates" "$root/run/certificates.pem"
while [ $# -gt 0 ]; do
    mount --bind --read-only "$1" "$root$2"
    shift 2
done
exec chroot "$root" /bin/sh -c "$command"
"""


def missing() -> str:
    """The reason why no image can be built here; empty if one can."""
    lacking = [program for program in ("debootstrap", "apt-get", "unshare", "tar") if _program(program) is None]
    if lacking:
        return f"what builds images is not installed ({', '.join(lacking)}): tools/system_packages.sh k8s"
    return "" if os.getuid() == 0 else "the root file system of an image needs root"


def base(file: Dockerfile) -> Kept:
    """The replacement of the base image; ValueError if this machine has none."""
    found = _BASE.fullmatch(file.base)
    if found is None:
        raise ValueError(f"nothing here stands in for the base '{file.base}', only for python:VERSION-slim-RELEASE")
    release = found["release"]

    def make(work: Path) -> None:
        root = work / "root"
        root.mkdir()
        argv = ["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", release, str(root), _debian_archive()]
        _run([*_APART, _program("debootstrap") or "debootstrap", *argv[1:]], {**os.environ, **_network()}, " ".join(argv))
        # These files are this machine's.
        for name in ("resolv.conf", "hostname"):
            (root / "etc" / name).write_text("")
        shutil.rmtree(root / "dev")
        (root / "dev").mkdir()
        run_step(root, _BASE_STEP, {}, ENV)
        _pack(root, work / "bin" / _ARCHIVE)

    return Kept("image-base", "\n".join([release, _PACKAGES, _BASE_STEP.command, _ENTER]), make)


def prepared(file: Dockerfile) -> Kept:
    """The base after the first steps that use nothing of the checkout."""
    steps = _first_steps(file)
    before = base(file)
    if not steps:
        return before

    def make(work: Path) -> None:
        root = work / "root"
        _unpack(before.folder / "bin" / _ARCHIVE, root)
        for step in steps:
            run_step(root, step, {}, _env(file))
        _pack(root, work / "bin" / _ARCHIVE)

    return Kept("image-steps", "\n".join([before.recipe, *_env(file), *(step.command for step in steps)]), make)


def wheels() -> Kept:
    """The wheels of this checkout, by the hash of their sources."""
    digest = hashlib.sha256()
    for path in files():
        if (path.parts[0] == "packages" and "tests" not in path.parts) or path.name == "build_wheels.py":
            digest.update(f"{path}\n{hashlib.sha256((ROOT / path).read_bytes()).hexdigest()}\n".encode())

    def make(work: Path) -> None:
        build_wheels.build(work / "bin")

    return Kept("wheels", digest.hexdigest(), make)


def built(path: Path, name: str) -> Path:
    """The archive of the image of this Dockerfile, with the wheels of this checkout; `name` is REPOSITORY:TAG.

    RuntimeError has the last lines of a step that fails.
    """
    file = read(path)
    first, packages = _first_steps(file), wheels()
    base(file).build()
    before, context = prepared(file).build(), {DIST.name: packages.build()}
    last = file.steps[len(first) :]
    image = file.image._replace(env=_env(file))

    def make(work: Path) -> None:
        root = work / "root"
        _unpack(before / _ARCHIVE, root)
        for step in last:
            run_step(root, step, context, image.env)
        write_root_image(work / "bin" / _IMAGE, root, name, image)

    recipe = "\n".join([name, str(before), packages.recipe, repr(last), repr(image)])
    return Kept(f"image-{path.stem}", recipe, make, _KEPT_S).build() / _IMAGE


def run_step(root: Path, step: Step, context: Mapping[str, Path], env: Sequence[str]) -> None:
    """Runs the command in the root file system, with the network of this machine."""
    made: list[Path] = []
    pairs: list[str] = []
    for source, target in step.binds:
        if source not in context:
            raise ValueError(f"no folder '{source}' is given to: RUN {step.command}")
        place = root / target.lstrip("/")
        if not place.exists():
            place.mkdir(parents=True)
            made.append(place)
        pairs += [str(context[source]), target]
    certificates, pip = _pip()
    variables = {name: value for name, _, value in (variable.partition("=") for variable in (*ENV, *env))}
    argv = [*_APART, "sh", "-c", _ENTER, "sh", str(root), step.command, certificates, *pairs]
    _run(argv, {**variables, **_network(), **pip, "DEBIAN_FRONTEND": "noninteractive"}, f"RUN {step.command}")
    for place in made:
        place.rmdir()


def _first_steps(file: Dockerfile) -> tuple[Step, ...]:
    count = next((number for number, step in enumerate(file.steps) if step.binds), len(file.steps))
    return file.steps[:count]


def _env(file: Dockerfile) -> tuple[str, ...]:
    return (*ENV, *file.image.env)


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _debian_archive() -> str:
    """The address of this machine's Debian archive, from the configuration of apt."""
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(ORIGIN)|$(LABEL)|$(COMPONENT)|$(SITE)"], check=True, capture_output=True, text=True
    ).stdout
    for line in listed.splitlines():
        if line.startswith("Debian|Debian|main|"):
            return line.rpartition("|")[2]
    raise RuntimeError("apt knows no archive of Debian here, or has no lists: apt-get update")


def _network() -> dict[str, str]:
    """The proxy variables of this machine, if it reaches archives by a proxy."""
    names = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
    found = {name: os.environ[name] for name in names if name in os.environ}
    asked = subprocess.run(["apt-config", "shell", "PROXY", "Acquire::http::Proxy"], check=True, capture_output=True, text=True).stdout
    proxy = asked.strip().removeprefix("PROXY=").strip("'")
    return {"http_proxy": proxy, **found} if proxy else found


def _pip() -> tuple[str, dict[str, str]]:
    """The file of certificates of this machine's pip, and its other settings for the index, as variables."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], check=True, capture_output=True, text=True).stdout
    found: dict[str, str] = {}
    certificates = ""
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        match name.rpartition(".")[2]:
            case "cert":
                certificates = str(ast.literal_eval(value))
                found["PIP_CERT"] = "/run/certificates.pem"
            case "index-url" | "extra-index-url" | "trusted-host" | "proxy" | "timeout" | "default-timeout" | "retries" as option:
                found[f"PIP_{option.upper().replace('-', '_')}"] = str(ast.literal_eval(value))
            case _:
                pass
    return certificates, found


def _run(argv: Sequence[str], env: Mapping[str, str], what: str) -> None:
    done = subprocess.run(
        argv,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=_STEP_TIMEOUT_S,
    )
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode} of {what}\n{done.stdout[-_LAST:]}")


def _pack(root: Path, archive: Path) -> None:
    subprocess.run(["tar", "--numeric-owner", "-C", str(root), "-cf", str(archive), "."], check=True)


def _unpack(archive: Path, root: Path) -> None:
    root.mkdir()
    subprocess.run(["tar", "--numeric-owner", "-C", str(root), "-xpf", str(archive)], check=True)
