"""Merges the folders that several machines have made of one release.

    python -m tools.release.merge FOLDERS FOLDER      FOLDERS has a folder for each machine

Pure wheels and sdists must have the same bytes on each machine. The statements of the machines are about different files, and stay apart.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tools.release import statement


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print("usage: python -m tools.release.merge FOLDERS FOLDER", file=sys.stderr)
        return 2
    found = merge(sorted(path for path in Path(arguments[0]).iterdir() if path.is_dir()), Path(arguments[1]))
    for problem in found:
        print(problem, file=sys.stderr)
    return 1 if found else 0


def merge(machines: list[Path], folder: Path) -> list[str]:
    """Copies the files of all machines to a folder; returns the problems."""
    folder.mkdir(parents=True, exist_ok=True)
    found: list[str] = []
    for machine in machines:
        for path in sorted(machine.iterdir()):
            if path.name == statement.CHECKSUMS:
                continue
            name = f"{machine.name}.{path.name}" if path.name == statement.PROVENANCE else path.name
            if not (folder / name).exists():
                shutil.copy2(path, folder / name)
            elif (folder / name).read_bytes() != path.read_bytes():
                found.append(f"{machine.name}: {path.name} has other bytes than that of another machine")
    files = sorted(path for path in folder.iterdir() if path.name != statement.CHECKSUMS)
    (folder / statement.CHECKSUMS).write_text(statement.checksums(files), encoding="utf-8")
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
