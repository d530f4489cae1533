"""Makes a folder with all files of a release, and checks them.

    python -m tools.release [FOLDER] [--nightly N | --final] [--from-sdists] [--images REGISTRY]      dist/release by default

The wheels are those of `dist/` (`python -m tools.build_wheels`); a wheel of pyfuse3 there is taken too. The sdist of each package is
built, and from it its wheel a second time, whose bytes must be the same. The second build of the native wheel takes minutes: it is made
with `--from-sdists`; else its sdist must have each file that the compiler has read. `--nightly N` builds the version `X.devN` from the
sdists alone. `--final` refuses changes that are marked as unreleased. `--images` prints the commands that build and push the images.
Everything but the publication is in this command: the exit code is 1 if there is a problem.
"""

from __future__ import annotations

import argparse
import gzip
import shlex
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

from tools import release_images, wheel_contents
from tools.project import DIST, JOBS, ROOT, commit_time
from tools.release import checks, licences, native, notes, sdists, statement, tree


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.release")
    parser.add_argument("folder", nargs="?", type=Path, default=DIST / "release", metavar="FOLDER")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--nightly", type=int, metavar="N")
    kind.add_argument("--final", action="store_true")
    parser.add_argument("--from-sdists", action="store_true")
    parser.add_argument("--images", metavar="REGISTRY")
    given = parser.parse_args(arguments)
    folder: Path = given.folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="release-") as scratch:
        try:
            found = made(folder, Path(scratch), given.nightly, given.final, given.from_sdists)
        except RuntimeError as error:
            found = [str(error)]
    if given.images is not None:
        for image in release_images.IMAGES:
            tag = "nightly" if given.nightly is not None else tree.version(JOBS)
            print(shlex.join(release_images.command(image, given.images.rstrip("/"), tag)))
    for path in sorted(folder.iterdir()):
        print(f"{path.stat().st_size:>10,}  {path.name}")
    for problem in found:
        print(problem)
    print(f"release: {len(list(folder.iterdir()))} files, {len(found)} problems")
    return 1 if found else 0


def made(folder: Path, scratch: Path, nightly: int | None, final: bool, from_sdists: bool) -> list[str]:
    """Makes the files; returns the problems."""
    root = ROOT if nightly is None else tree.nightly(nightly, scratch / "tree")
    packages = tree.packages(root)
    built = sdists.build(packages, folder)
    again = scratch / "wheels"
    again.mkdir()
    sdists.wheels(built, again, scratch / "sdists", native=from_sdists or nightly is not None)
    found: list[str] = []
    if nightly is None:
        found += _from_dist(built, folder, again, scratch)
    else:
        for wheel in again.iterdir():
            shutil.copy2(wheel, folder)
    for wheel in sorted(folder.glob("monarch_*.whl")):
        found += [f"{wheel.name}: {problem}" for problem in wheel_contents.problems(wheel)]
    found += licences.problems()
    found += checks.problems(sorted([*folder.glob("monarch_*.whl"), *built]))
    versions = {package.name: tree.version(package) for package in packages}
    text, lacking = notes.notes((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), versions, final)
    (folder / "CHANGES.md").write_text(text, encoding="utf-8")
    chart(folder)
    files = sorted(folder.iterdir())
    (folder / statement.CHECKSUMS).write_text(statement.checksums(files), encoding="utf-8")
    parameters = {"versions": versions, "nightly": nightly}
    (folder / statement.PROVENANCE).write_text(statement.provenance(files, parameters), encoding="utf-8")
    return [*found, *lacking]


def _from_dist(built: list[Path], folder: Path, again: Path, scratch: Path) -> list[str]:
    """Takes the wheels of `dist/`, and compares them with those that were built from the sdists."""
    found: list[str] = []
    for sdist in built:
        wheel, second = sdists.wheel_of(sdist, DIST), sdists.wheel_of(sdist, again)
        if wheel is None:
            found.append(f"{DIST}: there is no wheel of {sdist.name}: python -m tools.build_wheels")
            continue
        shutil.copy2(wheel, folder)
        if second is None:
            found += [f"{sdist.name}: {problem}" for problem in native.problems(scratch / "sdists" / sdist.name.removesuffix(".tar.gz"))]
        elif wheel.read_bytes() != second.read_bytes():
            found.append(f"{wheel.name}: the wheel of the sdist has other bytes")
    for wheel in DIST.glob("pyfuse3-*.whl"):
        shutil.copy2(wheel, folder)
    return found


def chart(folder: Path) -> None:
    """Packs the Helm chart of the operator, as `helm package` does, with the same bytes for each build of a commit."""
    source = JOBS / "charts" / "monarch-operator"
    description = (source / "Chart.yaml").read_text(encoding="utf-8").splitlines()
    (version,) = [line.split()[1].strip("'\"") for line in description if line.startswith("version:")]

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mtime, entry.mode = commit_time(), 0o644
        return entry

    path = folder / f"{source.name}-{version}.tgz"
    with path.open("wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for file in sorted(path for path in source.rglob("*") if path.is_file()):
            archive.add(file, f"{source.name}/{file.relative_to(source)}", filter=plain)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
