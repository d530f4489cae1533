"""Builds a wheel of pyfuse3 into dist/, so that hosts which install it need no compiler and no headers.

    python -m tools.build_pyfuse3 [FOLDER]      dist/ by default

There are only sources of pyfuse3 on the index. The wheel has one file more than those sources give: the library between pyfuse3 and
libfuse (`monarch/fs/_kernel/interposer.c`), which a host would have to compile otherwise. A host needs libfuse, which Debian's package
fuse3 brings. This machine needs a compiler and the headers, which the category `fuse` of tools/system_packages.sh has. monarch-fs must be
installed here. Nothing is built where the folder has the wheel.
"""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from monarch.fs._kernel import interposer
from tools.project import DIST, ROOT

REQUIREMENT = "pyfuse3>=3.3"


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0]) if arguments else DIST
    folder.mkdir(exist_ok=True)
    if any(_has_interposer(wheel) for wheel in folder.glob(f"pyfuse3-*-cp{sys.version_info.major}{sys.version_info.minor}-*.whl")):
        return 0
    subprocess.run(["bash", str(ROOT / "tools" / "system_packages.sh"), "fuse"], check=True)
    with tempfile.TemporaryDirectory(prefix="pyfuse3-") as scratch:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps", "--no-binary", "pyfuse3"]
        if code := subprocess.run([*pip, "--wheel-dir", scratch, REQUIREMENT], check=False).returncode:
            print(f"build_pyfuse3: pip wheel {REQUIREMENT} failed with exit code {code}", file=sys.stderr)
            return 1
        (built,) = Path(scratch).glob("pyfuse3-*.whl")
        library = Path(scratch) / interposer.SHIPPED
        try:
            interposer.compile_into(library)
        except interposer.InterposerError as e:
            print(f"build_pyfuse3: {e}", file=sys.stderr)
            return 1
        for old in folder.glob("pyfuse3-*.whl"):
            old.unlink()
        add_file(built, folder / built.name, f"pyfuse3/{library.name}", library.read_bytes())
        print(built.name)
    return 0


def _has_interposer(wheel: Path) -> bool:
    with zipfile.ZipFile(wheel) as archive:
        return f"pyfuse3/{interposer.SHIPPED}" in archive.namelist()


def add_file(wheel: Path, to: Path, name: str, content: bytes) -> None:
    """Copies a wheel with one file more, which its RECORD lists as the others: path, digest, size."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED) as made:
        for entry in source.infolist():
            data = source.read(entry)
            if entry.filename.endswith(".dist-info/RECORD"):
                data = f"{name},sha256={digest},{len(content)}\n".encode() + data
            made.writestr(entry, data, zipfile.ZIP_DEFLATED)
        made.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
