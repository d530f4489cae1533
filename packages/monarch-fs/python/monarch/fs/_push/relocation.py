"""Rewrites the prefix of an environment in the content of its files, as conda-pack does.

A file that contains the old prefix is one of three cases:

| file | what is done |
|---|---|
| text (no NUL byte) | each occurrence is replaced; a shebang over 127 bytes, or one with a space in its path, goes through `/usr/bin/env` |
| binary, with a conda record of the mode "binary" | the string is replaced and padded with NUL bytes; offsets stay |
| another binary, or a string for which the new prefix is too long | left as it is, and reported |

conda installs a binary with room for the placeholder that the package was built with, often 255 bytes: what the old prefix does not
need is NUL bytes behind the string. A new prefix that is longer than the old one takes them. Prefixes are
found only as whole paths: `/opt/env` is not replaced in `/opt/env2`. A prefix behind other letters is replaced too: in `-L/opt/env/lib` it
has to be.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

# Linux reads that many bytes of a shebang, "#!" included and the end of the line not.
SHEBANG_BYTES = 127
_SHEBANG = re.compile(rb"^#![ \t]*(?P<program>/[^\n]*?)(?P<options>[ \t]+-[^\n]*)?[ \t]*(?:\r?\n|$)")


class Relocated(NamedTuple):
    """The content of a file at its new place; `left` is true where the old prefix is still in it."""

    data: bytes
    left: bool


class Relocation:
    """Replaces prefixes by another one. Plain data: it travels to the hosts.

    `old` are the absolute paths that stand for the environment in its files; `new` is its absolute path on the hosts. `rooms` has the
    binaries that may be rewritten: their relative path -> the bytes that each prefix in them has room for.
    """

    def __init__(self, old: tuple[bytes, ...], new: bytes, rooms: Mapping[bytes, int]) -> None:
        for path in (*old, new):
            if not path.startswith(b"/") or len(path) < 2 or path.endswith(b"/") or b"\0" in path or b"\n" in path:
                raise ValueError(f"not the absolute path of an environment: {path!r}")
        # The longest first: one may be the begin of another.
        self.old = tuple(sorted({path for path in old if path != new}, key=lambda path: (-len(path), path)))
        self.new = new
        self.rooms = dict(rooms)
        # The end of a path component must follow: neither a letter nor a dot with a letter behind it.
        self._patterns = [re.compile(re.escape(path) + rb"(?![\w\-]|\.\w)") for path in self.old]

    @property
    def overlap(self) -> int:
        """The bytes at the end of a part of a file that belong to a search in the next one."""
        return max(map(len, self.old), default=1) - 1

    def is_in(self, data: bytes | memoryview) -> bool:
        """Whether an old prefix may be in the content; a quick test, with false positives."""
        found = bytes(data)
        return any(path in found for path in self.old)

    def content(self, path: bytes, data: bytes) -> Relocated:
        """The content of the file at this relative path."""
        if b"\0" not in data:
            return Relocated(self._shebang(data), False)
        left = False
        for old, pattern in zip(self.old, self._patterns, strict=True):
            if not pattern.search(data):
                continue
            room = self.rooms.get(path)
            if room is None:
                left = True
                continue
            data, whole = _padded(data, pattern, len(old), self.new, max(room, len(old)))
            left = left or not whole
        return Relocated(data, left)

    def link(self, text: bytes) -> bytes:
        """The text of a symbolic link."""
        for old in self.old:
            if text == old or text.startswith(old + b"/"):
                return self.new + text[len(old) :]
        return text

    def _replaced(self, data: bytes) -> bytes:
        for pattern in self._patterns:
            data = pattern.sub(lambda _: self.new, data)
        return data

    def _shebang(self, data: bytes) -> bytes:
        """A text with the new prefix."""
        found = _SHEBANG.match(data)
        if found is None:
            return self._replaced(data)
        program = found["program"]
        moved = self._replaced(program)
        options = found["options"] or b""
        if moved != program:
            line = b"#!" + moved + options
            if len(line) > SHEBANG_BYTES or re.search(rb"[ \t]", moved):
                # `-S` splits the rest of the line; without options no such switch is needed.
                line = b"#!/usr/bin/env " + (b"-S " if options else b"") + moved.rsplit(b"/", 1)[1] + options
            return line + self._replaced(data[found.end("options") if found["options"] else found.end("program") :])
        return self._replaced(data)


def _padded(data: bytes, pattern: re.Pattern[bytes], old: int, new: bytes, room: int) -> tuple[bytes, bool]:
    """A binary with the new prefix in its strings, at the same offsets; and whether all of them had room."""
    out = bytearray(data)
    whole = True
    end_of_last = 0
    for found in pattern.finditer(data):
        if found.start() < end_of_last:
            continue
        end = data.find(b"\0", found.start())
        end_of_last = len(data) if end < 0 else end
        string = data[found.start() : end_of_last]
        moved, count = pattern.subn(lambda _: new, string)
        more = len(moved) - len(string)
        # What the installer left behind the string, besides the NUL that ends it; never more than the placeholder's room.
        spare = min((room - old) * count, _zeros(data, end_of_last) - 1)
        if more > 0 and more > spare:
            whole = False
            continue
        out[found.start() : found.start() + len(moved)] = moved
        if more < 0:
            out[found.start() + len(moved) : end_of_last] = bytes(-more)
    return bytes(out), whole


def _zeros(data: bytes, start: int) -> int:
    """The NUL bytes that begin here, as far as a placeholder may be long."""
    stop = start
    while stop < len(data) and stop - start < 4096 and not data[stop]:
        stop += 1
    return stop - start


class PlainRelocation(NamedTuple):
    """A relocation as it travels."""

    old: tuple[bytes, ...]
    new: bytes
    rooms: dict[bytes, int]

    def relocation(self) -> Relocation:
        return Relocation(self.old, self.new, self.rooms)
