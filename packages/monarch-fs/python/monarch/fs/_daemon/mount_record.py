"""What a mount is, as its folder keeps it: what its server serves, and what the next daemon needs to take it over or to remove it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from monarch.fs._daemon.shared_directory import used_elsewhere
from monarch.fs._tree.operations import MountOptions

RECORD, TABLE, STATE, SOCKET = "record", "table", "state", "s"
# Seconds for which a detached mount is served to processes with open files in it.
LINGER_SECONDS = 60.0


@dataclass
class MountRecord:
    """One mount. It is written before the mount is made, so that what a killed daemon leaves can be found."""

    target: str
    # The shown source: mounts of the same source share a mount point.
    source: str
    options: MountOptions
    owner: tuple[int, int] | None
    # The folder and the limit, in bytes, of the store that the mount server reads.
    store: str
    limit: int
    # Directories that were created for the mount point, outermost first.
    made: list[str] = field(default_factory=list[str])
    # Minor number of the device; -1 before the mount exists.
    device: int = -1
    # Whether a server has negotiated with the kernel: the next one resumes.
    negotiated: bool = False

    def save(self, folder: Path) -> None:
        """Replaces the record of the folder."""
        temporary = folder / f"{RECORD}.new"
        temporary.write_text(json.dumps(asdict(self) | {"options": self.options._asdict()}))
        os.replace(temporary, folder / RECORD)

    @classmethod
    def load(cls, folder: Path) -> MountRecord:
        """The record of a folder; `ValueError` or `OSError` where there is none or it is damaged."""
        try:
            found: dict[str, Any] = json.loads((folder / RECORD).read_text())
            owner = found["owner"]
            found["options"] = MountOptions(**found["options"])
            found["owner"] = None if owner is None else (owner[0], owner[1])
            return cls(**found)
        except (KeyError, TypeError, IndexError) as e:
            raise ValueError(f"{folder / RECORD}: damaged: {e!r}") from None


def mount_folder(daemon_folder: Path, target: str) -> Path:
    """The folder of the mount at this path."""
    return daemon_folder / "m" / hashlib.sha256(os.fsencode(target)).hexdigest()[:16]


def mount_key(target: str) -> str:
    """The path of a mount point without links, `ValueError` where it is not absolute. A mounted file system there is not used."""
    if not os.path.isabs(target):
        raise ValueError(f"{target!r}: a mount point must be an absolute path")
    if "\0" in target:
        raise ValueError(f"{target!r}: a mount point has no null character")
    path = os.path.normpath(target)
    parent, name = os.path.split(path)
    if not name:
        raise ValueError(f"{target!r}: the root directory cannot be a mount point")
    return os.path.join(os.path.realpath(parent), name)


def remove_made(made: list[str]) -> None:
    """Removes the directories that were made for a mount point, innermost first: empty ones where no other host may have a mount."""
    used = used_elsewhere(made) if made else ()
    for path in reversed(made):
        if path not in used:
            with contextlib.suppress(OSError):
                os.rmdir(path)
