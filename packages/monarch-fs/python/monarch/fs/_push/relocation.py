"""Rewrites the prefix of an environment in the content of its files, as conda-pack does.

A file that contains the old prefix is one of three cases:

| file | what is done |
|---|---|
| text (no NUL byte) | each occurrence is replaced; a shebang over 127 bytes, or one with a space in its path, is written in another way |
| binary, with a conda record of the mode "binary" | the string is replaced and padded with NUL bytes; offsets stay |
| another binary, or a string for which the new prefix is too long | left as it is, and reported |

A shebang that the kernel could not use becomes, for Python, two lines that are a command of `/bin/sh` and a string of Python, as pip writes
them; other programs are found by `/usr/bin/env` on the path of the caller, as conda-pack does it.

conda installs a binary with room for the placeholder that the package was built with, often 255 bytes: what the old prefix does not
need is NUL bytes behind the string. A new prefix that is longer than the old one takes them. Prefixes are
found only as whole paths: `/env` is replaced neither in `/env2` nor in `/usr/bin/env` nor in `lib/env`. Only these may precede a path: an
option of a compiler (`-L/env/lib`) and an escaped letter (`\\n/env`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

# The most bytes of a shebang that Linux reads, including "#!" and without the end of the line.
SHEBANG_BYTES = 127
# Characters of a file name, without rarer ones: before a prefix they make it another path.
_NAME = rb"\w.+~@%\-\x80-\xff"
_BEFORE = re.compile(rb"(?P<name>[" + _NAME + rb"]*)(?P<slashes>/*)\Z")
_OPTION = re.compile(rb"-[A-Za-z]\w*\Z")
# The bytes before a prefix that are checked.
_BEFORE_BYTES = 300
_PYTHON = re.compile(rb"(?:python|pypy)[\d.]*\Z")
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
        # The longest first: one may be the start of another.
        self.old = tuple(sorted({path for path in old if path != new}, key=lambda path: (-len(path), path)))
        self.new = new
        self.rooms = dict(rooms)
        # The end of a path component must follow: neither a letter nor a dot before a letter.
        self._patterns = [re.compile(re.escape(path) + rb"(?![\w+@\-\x80-\xff]|\.\w)") for path in self.old]

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
        room = self.rooms.get(path)
        if b"\0" not in data and room is None:
            return Relocated(self._shebang(data), False)
        left = False
        for old, pattern in zip(self.old, self._patterns, strict=True):
            if not any(_is_path(data, found.start()) for found in pattern.finditer(data)):
                continue
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
            data = _substituted(pattern, self.new, data)[0]
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
                line = _long_shebang(moved, options)
            return line + self._replaced(data[found.end("options") if found["options"] else found.end("program") :])
        return self._replaced(data)


def _padded(data: bytes, pattern: re.Pattern[bytes], old: int, new: bytes, room: int) -> tuple[bytes, bool]:
    """A binary with the new prefix in its strings, at the same offsets; and whether all of them had room."""
    out = bytearray(data)
    whole = True
    end_of_last = 0
    for found in pattern.finditer(data):
        if found.start() < end_of_last or not _is_path(data, found.start()):
            continue
        end = data.find(b"\0", found.start())
        end_of_last = len(data) if end < 0 else end
        string = data[found.start() : end_of_last]
        moved, count = _substituted(pattern, new, string)
        more = len(moved) - len(string)
        # The bytes that the installer left after the string, without the NUL that ends it; never more than the room of the placeholder.
        spare = min((room - old) * count, _zeros(data, end_of_last) - 1)
        if more > 0 and more > spare:
            whole = False
            continue
        out[found.start() : found.start() + len(moved)] = moved
        if more < 0:
            out[found.start() + len(moved) : end_of_last] = bytes(-more)
    return bytes(out), whole


def _substituted(pattern: re.Pattern[bytes], new: bytes, data: bytes) -> tuple[bytes, int]:
    """The prefix replaced where it begins a path; and how often."""
    count = 0

    def replaced(found: re.Match[bytes]) -> bytes:
        nonlocal count
        if not _is_path(data, found.start()):
            return found[0]
        count += 1
        return new

    return pattern.sub(replaced, data), count


def _is_path(data: bytes, start: int) -> bool:
    """Whether a prefix that is found here begins a path, and is not the end or the middle of another one."""
    above = _BEFORE.search(data[max(0, start - _BEFORE_BYTES) : start])
    if above is None or not above["name"]:
        return True
    if above["slashes"]:
        return False
    at = start - len(above["name"])
    before = data[max(0, at - 1) : at]
    if before == b"\\":
        return len(above["name"]) == 1
    return before != b"/" and _OPTION.match(above["name"]) is not None


def _long_shebang(program: bytes, options: bytes) -> bytes:
    """Lines that start a program whose path does not fit into a shebang."""
    name = program.rsplit(b"/", 1)[1]
    if _PYTHON.match(name) and not re.search(rb"[\"$`\\]", program):
        return b"#!/bin/sh\n'''exec' \"" + program + b'"' + options + b" \"$0\" \"$@\"\n' '''"
    # `-S` splits the rest of the line; without options this switch is not needed.
    return b"#!/usr/bin/env " + (b"-S " if options else b"") + name + options


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
