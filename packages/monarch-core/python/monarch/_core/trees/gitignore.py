"""`.gitignore` files with the semantics of git: the paths of a tree that are left out.

Each pattern becomes a regular expression over bytes, because git matches bytes. A pattern without a slash is matched against the name, any
other against the path below the directory of its file. The last pattern that matches decides, and files in deeper directories come after
those above. A directory that is left out is never entered, so no pattern can include a path in it.
"""

from __future__ import annotations

import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_CLASSES = {
    b"alnum": rb"0-9A-Za-z",
    b"alpha": rb"A-Za-z",
    b"blank": rb" \t",
    b"cntrl": rb"\x00-\x1f\x7f",
    b"digit": rb"0-9",
    b"graph": rb"!-~",
    b"lower": rb"a-z",
    b"print": rb" -~",
    b"punct": rb"!-/:-@\[-`{-~",
    b"space": rb" \t-\r",
    b"upper": rb"A-Z",
    b"xdigit": rb"0-9A-Fa-f",
}
# The characters that end the literal beginning of a pattern.
_SPECIAL = re.compile(rb"[*?\[\\]")
_NEVER = rb"(?!)"


class Pattern:
    """A line of a `.gitignore`."""

    __slots__ = ("anywhere", "directory_only", "negated", "regex")

    def __init__(self, regex: bytes, anywhere: bool, negated: bool, directory_only: bool) -> None:
        self.regex = regex
        # The pattern is matched against the name, in any directory.
        self.anywhere = anywhere
        self.negated = negated
        self.directory_only = directory_only


def parse_line(line: bytes) -> Pattern | None:
    """The pattern of a line without its end; None if the line has none."""
    if not line or line.startswith(b"#"):
        return None
    line = _without_trailing_spaces(line)
    negated = line.startswith(b"!")
    if negated:
        line = line[1:]
    directory_only = line.endswith(b"/")
    if directory_only:
        line = line[:-1]
    if not line:
        return None
    anywhere = b"/" not in line
    if not anywhere and line.startswith(b"/"):
        line = line[1:]
    return Pattern(_regex(line, not anywhere), anywhere, negated, directory_only)


def _without_trailing_spaces(line: bytes) -> bytes:
    kept = end = 0
    while kept < len(line):
        step = 2 if line[kept : kept + 1] == b"\\" else 1
        if line[kept : kept + 1] != b" ":
            end = min(kept + step, len(line))
        kept += step
    return line[:end]


def _regex(pattern: bytes, is_path: bool) -> bytes:
    found = _SPECIAL.search(pattern)
    literal = len(pattern) if found is None else found.start()
    parts = [re.escape(pattern[:literal])]
    # Git compares the literal beginning first and then matches the rest from its start, so stars there count as stars at a beginning.
    rest = pattern[literal:]
    at, end = 0, len(rest)
    any_byte = rb"[^/]" if is_path else rb"[\x00-\xff]"
    while at < end:
        c = rest[at : at + 1]
        if c == b"*":
            stars = at
            while rest[at : at + 1] == b"*":
                at += 1
            alone = stars == 0 or rest[stars - 1 : stars] == b"/"
            if is_path and at - stars > 1 and alone and (at == end or rest[at : at + 1] == b"/"):
                if at == end:
                    parts.append(rb"[\x00-\xff]*")
                else:
                    parts.append(rb"(?:[\x00-\xff]*/)?")
                    at += 1
            else:
                parts.append(any_byte + b"*")
        elif c == b"?":
            parts.append(any_byte)
            at += 1
        elif c == b"[":
            made, at = _bracket(rest, at, is_path)
            parts.append(made)
        elif c == b"\\":
            if at + 1 == end:
                return _NEVER
            parts.append(re.escape(rest[at + 1 : at + 2]))
            at += 2
        else:
            parts.append(re.escape(c))
            at += 1
    return b"".join(parts)


def _bracket(text: bytes, start: int, is_path: bool) -> tuple[bytes, int]:
    """The expression of a set, and the position of its end; a set without an end matches nothing."""
    at = start + 1
    negated = text[at : at + 1] in (b"!", b"^")
    if negated:
        at += 1
    members: list[bytes] = []
    first = True
    previous: bytes | None = None
    while first or text[at : at + 1] != b"]":
        first = False
        c = text[at : at + 1]
        if not c:
            return _NEVER, len(text)
        if text[at : at + 2] == b"[:":
            close = text.find(b"]", at + 2)
            if close < 0:
                return _NEVER, len(text)
            if text[close - 1 : close] == b":" and close - 1 >= at + 2:
                name = text[at + 2 : close - 1]
                if name not in _CLASSES:
                    return _NEVER, len(text)
                members.append(_CLASSES[name])
                at, previous = close + 1, None
                continue
        following = text[at + 1 : at + 2]
        if c == b"-" and previous is not None and following not in (b"", b"]"):
            at += 1
            high = following
            if high == b"\\":
                at += 1
                high = text[at : at + 1]
                if not high:
                    return _NEVER, len(text)
            if previous <= high:
                members.append(re.escape(previous) + b"-" + re.escape(high))
            at, previous = at + 1, None
            continue
        if c == b"\\":
            at += 1
            c = text[at : at + 1]
            if not c:
                return _NEVER, len(text)
        members.append(re.escape(c))
        at, previous = at + 1, c
    made = (b"[^" if negated else b"[") + b"".join(members) + b"]"
    return (rb"(?!/)" + made if is_path else made), at + 1


class Rules:
    """The patterns of one `.gitignore`, compiled on first use."""

    __slots__ = ("_compiled", "_names", "_some_name", "_some_path", "text")

    def __init__(self, text: bytes) -> None:
        self.text = text
        self._compiled: list[tuple[Any, Pattern]] | None = None
        self._names: dict[bytes, bool] = {}
        self._some_name: Callable[[bytes], Any] | None = None
        self._some_path: Callable[[bytes], Any] | None = None

    def _compile(self) -> list[tuple[Any, Pattern]]:
        lines = self.text.removeprefix(b"\xef\xbb\xbf").split(b"\n")
        found = [p for p in (parse_line(line.removesuffix(b"\r")) for line in lines) if p is not None]
        names = [p.regex for p in found if p.anywhere]
        paths = [p.regex for p in found if not p.anywhere]
        self._some_name = _any_of(names)
        self._some_path = _any_of(paths)
        self._compiled = [(None, p) for p in reversed(found)]
        return self._compiled

    def decide(self, path: bytes, name: bytes, is_directory: bool) -> bool | None:
        """Whether these rules leave the path out; None if no rule matches it. `path` is relative to the file's directory."""
        compiled = self._compiled
        if compiled is None:
            compiled = self._compile()
        names = self._names
        some = names.get(name)
        if some is None:
            some = names[name] = self._some_name is not None and self._some_name(name) is not None
        if not some and (self._some_path is None or self._some_path(path) is None):
            return None
        for i, (match, pattern) in enumerate(compiled):
            if match is None:
                match = re.compile(pattern.regex).fullmatch
                compiled[i] = (match, pattern)
            if (is_directory or not pattern.directory_only) and match(name if pattern.anywhere else path) is not None:
                return not pattern.negated
        return None


def _any_of(expressions: list[bytes]) -> Callable[[bytes], Any] | None:
    return re.compile(b"|".join(b"(?:%s)" % e for e in expressions)).fullmatch if expressions else None


class RuleChain:
    """The rules that apply in a directory: those of its own file, and those of the directories above.

    `base` is the directory of the file relative to the top, with a slash at its end unless it is the top. For a file above the top,
    `prefix` is the path between the two, with a slash at its end.
    """

    __slots__ = ("above", "base", "key", "prefix", "rules")

    def __init__(self, rules: Rules | None = None, base: bytes = b"", above: RuleChain | None = None, prefix: bytes = b"") -> None:
        self.rules = rules
        self.base = base
        self.prefix = prefix
        self.above = above
        # Equal rules have equal keys.
        self.key: bytes = b""
        if rules is not None:
            from hashlib import blake2b

            parts = (above.key if above is not None else b"", base, prefix, rules.text)
            self.key = blake2b(b"\0".join(parts), digest_size=16).digest()

    def leaves_out(self, path: bytes, name: bytes, is_directory: bool) -> bool:
        """Whether a path, relative to the top, is left out. The path's directory is not left out."""
        chain: RuleChain | None = self
        while chain is not None:
            if chain.rules is not None:
                found = chain.rules.decide(chain.prefix + path[len(chain.base) :], name, is_directory)
                if found is not None:
                    return found
            chain = chain.above
        return False


def rules_above(top: bytes) -> RuleChain:
    """The rules of the git work tree for a directory in it; none if they leave out the directory itself."""
    directories: list[bytes] = []
    at = top
    while not os.path.lexists(os.path.join(at, b".git")):
        parent = os.path.dirname(at)
        if parent == at:
            return RuleChain()
        at = parent
        directories.append(at)
    names = os.path.relpath(top, at).split(b"/")
    # Paths are relative to the top of the work tree first, to test the directory itself.
    chain = RuleChain()
    texts: list[tuple[bytes, Rules]] = []
    for depth, directory in enumerate(reversed(directories)):
        path = os.path.join(directory, b".gitignore")
        base = b"".join(name + b"/" for name in names[:depth])
        if os.path.isfile(path) and not os.path.islink(path):
            with open(path, "rb") as f:
                rules = Rules(f.read())
            chain = RuleChain(rules, base, chain)
            texts.append((b"".join(name + b"/" for name in names[depth:]), rules))
        if chain.leaves_out(base + names[depth], names[depth], True):
            return RuleChain()
    chain = RuleChain()
    for prefix, rules in texts:
        chain = RuleChain(rules, b"", chain, prefix)
    return chain
