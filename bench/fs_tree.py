"""The data of the benchmark of mounts: a tree of small files with one large file beside it, and environments that are kept between runs."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

SMALL, LARGE = "small", "large"
_PIECE = 1 << 20


def make_tree(top: Path, files: int, large_bytes: int) -> None:
    """`small` with modules of about 1 kB, 100 in a folder, and `large` with one file that does not compress."""
    for number in range(files):
        if number % 100 == 0:
            (top / SMALL / f"d{number // 100}").mkdir(parents=True)
        (top / SMALL / f"d{number // 100}" / f"f{number % 100}.py").write_text(f"VALUE = {number}\n" * 60)
    (top / LARGE).mkdir()
    fill(top / LARGE / "file", large_bytes)


def fill(path: Path, nbytes: int) -> None:
    """Writes `nbytes` random bytes."""
    with path.open("wb") as file:
        for at in range(0, nbytes, _PIECE):
            file.write(os.urandom(min(_PIECE, nbytes - at)))


def environment(name: str, *pins: str) -> Path:
    """A virtual environment with these packages, made once: it is kept in the user's cache folder, by the hash of the pins.

    `RuntimeError` with the output of pip if they cannot be installed.
    """
    words = [sys.version, *pins]
    digest = hashlib.sha256("\n".join(words).encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "monarch" / "bench" / f"{name}-{digest}"
    python, complete = folder / "bin" / "python", folder / ".complete"
    if complete.exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    argv = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python), "install", "--quiet", *pins]
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:] or [f"pip ended with {done.returncode}"]
        raise RuntimeError(f"{' '.join(pins)}: {last[0]}")
    complete.touch()
    return folder
