"""What an environment records about its own path: conda's records of packages, and what a venv has in its scripts.

conda writes a file `conda-meta/<package>.json` for each package. Its `paths_data.paths` names the files that contain the prefix of the
environment: `prefix_placeholder` is the text that stood there in the package, `file_mode` is "text" or "binary". Packages that were
made long ago have no `paths_data`. A venv has its path in `bin/activate` and in the shebangs of `bin`.

The path in the files may be another one than that of the source: a link may lead to it. Each of them counts as the old prefix.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, cast

from monarch.fs._push.relocation import Relocation

# The most bytes of a record: that of a package with 100,000 files has about 40 MB.
_RECORD_BYTES = 128 << 20
_ACTIVATE = re.compile(rb"""^\s*(?:export\s+)?VIRTUAL_ENV=(?P<quote>['"]?)(?P<path>/[^'"\n]*)(?P=quote)\s*$""", re.MULTILINE)


def is_environment(source: str) -> bool:
    """Whether the directory is a conda environment or a venv."""
    return os.path.isdir(os.path.join(source, "conda-meta")) or os.path.isfile(os.path.join(source, "pyvenv.cfg"))


def relocation_of(source: str, target: str) -> Relocation:
    """How the environment at `source` is rewritten for `target`.

    `ValueError` where `source` is neither a conda environment nor a venv, or a record of conda is malformed: it is named.
    """
    if not is_environment(source):
        raise ValueError(f"{source}: neither a conda environment (conda-meta) nor a venv (pyvenv.cfg): relocate=True cannot rewrite it")
    old = {os.fsencode(os.path.abspath(source)), os.fsencode(os.path.realpath(source))}
    rooms: dict[bytes, int] = {}
    for record in sorted(Path(source, "conda-meta").glob("*.json")):
        rooms.update(_rooms(record))
    old |= _recorded_prefix(Path(source))
    return Relocation(tuple(old), os.fsencode(os.path.normpath(target)), rooms)


def _rooms(record: Path) -> dict[bytes, int]:
    """The binaries of a package that contain its prefix, with the bytes of the placeholder."""
    try:
        if record.stat().st_size > _RECORD_BYTES:
            raise ValueError("larger than 128 MiB")
        # This decoding accepts each byte in a name.
        found: Any = json.loads(record.read_bytes().decode("utf-8", "surrogateescape"))
        paths: Any = _member(_member(found, "paths_data", {}), "paths", [])
        rooms: dict[bytes, int] = {}
        for entry in _list(paths):
            name, placeholder = _member(entry, "_path", ""), _member(entry, "prefix_placeholder", "")
            if placeholder and _member(entry, "file_mode", "") == "binary":
                rooms[name.encode("utf-8", "surrogateescape")] = len(placeholder.encode("utf-8", "surrogateescape"))
        return rooms
    except (ValueError, AttributeError, RecursionError, OSError) as e:
        raise ValueError(f"{record}: malformed record of conda: {e}") from None


def _member(value: Any, key: str, default: Any) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"an object with {key!r} is expected, not {type(value).__name__}")
    found = cast("dict[str, Any]", value).get(key)
    if found is None:
        return default
    if not isinstance(found, type(default)):
        raise ValueError(f"{key!r} is a {type(found).__name__}, not a {type(default).__name__}")
    return found


def _list(value: Any) -> list[Any]:
    return cast("list[Any]", value)


def _recorded_prefix(source: Path) -> set[bytes]:
    """The path that the activation script of a venv has, if it leads to the source."""
    try:
        text = (source / "bin" / "activate").read_bytes()[: 1 << 20]
    except OSError:
        return set()
    found = {match["path"].rstrip(b"/") for match in _ACTIVATE.finditer(text)}
    # A copied environment has the path of another one: replacing it is correct too, because its scripts should work at the new place.
    return {path for path in found if len(path) > 1}
