"""The wheels that are installed here and have entry points for Monarch.

The folders of the module path are read directly: `importlib.metadata` takes tens of milliseconds to load, and every program that spawns
procs needs this list. Wheels in zip files are not found.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

CORE = "monarch-core"
_SUFFIX = ".dist-info"
_PREFIX = "monarch."


class Wheel:
    """An installed wheel: its name as in its metadata, and its version."""

    __slots__ = ("_folder", "name", "version")

    def __init__(self, folder: str) -> None:
        self._folder = folder
        name, _, self.version = folder.rpartition("/")[2].removesuffix(_SUFFIX).partition("-")
        self.name = name.replace("_", "-")

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    def core_range(self) -> str:
        """The versions of monarch-core that it was built for, such as `>=0.1,<0.2`; empty where it declares none."""
        clauses: list[str] = []
        for line in _read(self._folder, "METADATA").splitlines():
            if not line:  # the description follows
                break
            field, _, value = line.partition(":")
            requirement, _, marker = value.partition(";")
            if field.lower() != "requires-dist" or "extra" in marker:
                continue
            name = requirement.strip()
            end = next((i for i, c in enumerate(name) if not (c.isalnum() or c in "-_.")), len(name))
            if normal(name[:end]) == CORE:
                clauses.append(name[end:].strip(" ()"))
        return ",".join(clauses)


class Entry:
    """An entry point: its wheel, its group, its name, and the object that it refers to (`module:attribute`)."""

    __slots__ = ("group", "name", "target", "wheel")

    def __init__(self, wheel: Wheel, group: str, name: str, target: str) -> None:
        self.wheel = wheel
        self.group = group
        self.name = name
        self.target = target


def normal(name: str) -> str:
    """The normalised name of a wheel, which an index compares."""
    return name.lower().replace("_", "-").replace(".", "-")


class Installed:
    """The result of one scan of the module path."""

    __slots__ = ("entries", "versions")

    def __init__(self) -> None:
        # By the normal name of each wheel.
        self.versions: dict[str, str] = {}
        self.entries: dict[str, dict[str, Entry]] = {}
        for folder in _folders():
            wheel = Wheel(folder)
            name = normal(wheel.name)
            if name in self.versions:  # another wheel earlier on the path hides this one
                continue
            self.versions[name] = wheel.version
            text = _read(folder, "entry_points.txt")
            if text and f"[{_PREFIX}" in text:
                for entry in _parse(wheel, text):
                    group = self.entries.setdefault(entry.group, {})
                    # Of two wheels with one entry name, the first by wheel name has it, in any order of the path.
                    if entry.name not in group or (entry.wheel.name, entry.target) < (
                        group[entry.name].wheel.name,
                        group[entry.name].target,
                    ):
                        group[entry.name] = entry

    @property
    def core(self) -> str | None:
        """The installed version of monarch-core; None in a checkout that is not installed."""
        return self.versions.get(CORE)


def _folders() -> Iterator[str]:
    for place in dict.fromkeys(sys.path):
        try:
            names = os.listdir(place or ".")
        except OSError:  # a zip file, or a missing folder
            continue
        for name in names:
            if name.endswith(_SUFFIX):
                yield f"{place or '.'}/{name}"


def _read(folder: str, name: str) -> str:
    try:
        # The files are many, and most are short or missing: plain system calls are fastest.
        fd = os.open(f"{folder}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        parts: list[bytes] = []
        while part := os.read(fd, 1 << 20):
            parts.append(part)
    except OSError:
        return ""
    finally:
        os.close(fd)
    return b"".join(parts).decode(errors="replace")


def _parse(wheel: Wheel, text: str) -> Iterator[Entry]:
    group = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            group = line[1:-1].strip()
        elif group.startswith(_PREFIX) and "=" in line and line[0] not in "#;":
            name, _, target = line.partition("=")
            yield Entry(wheel, group, name.strip(), target.strip())
