"""Patterns of paths that are left out of a tree (`exclude`).

`*`, `?` and `[...]` match within a name, `**` across directories. A pattern without a slash is about names at any depth; one with a slash
is about paths relative to the source. A slash at the end restricts it to directories. The contents of an excluded directory are too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

# Never in a tree, with any patterns: jobs keep their state in it.
PRIVATE = b".monarch"


class Exclusion:
    """The patterns of a tree; `ValueError` for a malformed one, with its text."""

    def __init__(self, patterns: Sequence[str]) -> None:
        if isinstance(patterns, str):
            raise ValueError(f"exclude is {patterns!r}: it is a sequence of patterns, such as ({patterns!r},)")
        self.patterns = tuple(patterns)
        names: list[bytes] = []
        paths: list[bytes] = []
        for pattern in self.patterns:
            expression, is_path = _parse(pattern)
            (paths if is_path else names).append(expression)
        self._name, self._path = _any(names), _any(paths)
        self.has_paths = bool(paths)
        self._known: dict[tuple[bytes, bool], bool] = {}

    def matches(self, path: bytes, name: bytes, is_directory: bool) -> bool:
        """Whether a path, relative to the source, is left out; its directory is not."""
        found = self._known.get((name, is_directory))
        if found is None:
            end = b"/" if is_directory else b""
            found = (name == PRIVATE and is_directory) or (self._name is not None and self._name.fullmatch(name + end) is not None)
            if len(self._known) < 1 << 16:
                self._known[name, is_directory] = found
        return found or (self._path is not None and self._path.fullmatch(path + (b"/" if is_directory else b"")) is not None)


def _any(expressions: list[bytes]) -> re.Pattern[bytes] | None:
    return re.compile(b"|".join(b"(?:%s)" % e for e in expressions), re.DOTALL) if expressions else None


def _parse(pattern: object) -> tuple[bytes, bool]:
    """The expression of a pattern, and whether it is about paths."""
    if not isinstance(pattern, str):
        raise ValueError(f"the pattern {pattern!r} is no text")
    text = os.fsencode(pattern)
    only_directories = text.endswith(b"/")
    words = text.rstrip(b"/").split(b"/")
    if not text or b"\0" in text or b"" in words or b"." in words or b".." in words:
        raise ValueError(f"the pattern {pattern!r} is malformed: it is a name, or a path relative to the source")
    is_path = len(words) > 1
    out: list[bytes] = []
    for number, word in enumerate(words):
        last = number == len(words) - 1
        if word == b"**" and is_path:
            out.append(b".+" if last else b"(?:[^/]+/)*")
        else:
            out.append(_word(word, pattern) + (b"" if last else b"/"))
    return b"".join(out) + (b"/" if only_directories else b"/?"), is_path


def _word(word: bytes, pattern: str) -> bytes:
    out: list[bytes] = []
    at = 0
    while at < len(word):
        c = word[at : at + 1]
        at += 1
        if c == b"*":
            out.append(b"[^/]*")
        elif c == b"?":
            out.append(b"[^/]")
        elif c == b"[":
            negated = word[at : at + 1] in (b"!", b"^")
            at += negated
            # A bracket in the first position is a member.
            end = word.find(b"]", at + 1)
            if end < 0:
                raise ValueError(f"the pattern {pattern!r} is malformed: a '[' without ']'")
            members = word[at:end].replace(b"\\", b"\\\\").replace(b"]", b"\\]").replace(b"[", b"\\[").replace(b"^", b"\\^")
            members = re.sub(rb"([&~|])", rb"\\\1", members)
            out.append(b"(?!/)[" + (b"^" if negated else b"") + members + b"]")
            try:
                re.compile(out[-1])
            except re.error as e:
                raise ValueError(f"the pattern {pattern!r} is malformed: {e}") from None
            at = end + 1
        else:
            out.append(re.escape(c))
    return b"".join(out)
