"""SLURM's compact lists of host names: `n[0-2,7],gpu[01-02]-ib` is n0, n1, n2, n7, gpu01-ib, gpu02-ib."""

from __future__ import annotations

import re
from collections.abc import Iterator

LIMIT = 100_000  # hosts of one list: a bound for garbage such as n[0-999999999], above any cluster

_BRACKET = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def expand(text: str) -> list[str]:
    """The names in order; `ValueError` for what is no host list. Several brackets in one name multiply, the last one runs fastest."""
    names: list[str] = []
    for part in _parts(text):
        for name in _expanded(part):
            names.append(name)
            if len(names) > LIMIT:
                raise ValueError(f"more than {LIMIT} hosts in {text[:80]!r}")
    return names


def _parts(text: str) -> Iterator[str]:
    """Splits at the commas that are outside of brackets."""
    depth = start = 0
    for position, character in enumerate(text):
        if character == "[":
            depth += 1
        elif character == "]":
            depth -= 1
        elif character == "," and depth == 0:
            yield _word(text[start:position], text)
            start = position + 1
        if not 0 <= depth <= 1:
            raise ValueError(f"brackets that do not match in the host list {text[:80]!r}")
    if depth:
        raise ValueError(f"brackets that do not match in the host list {text[:80]!r}")
    if text:
        yield _word(text[start:], text)


def _word(part: str, text: str) -> str:
    if not part or not re.fullmatch(r"[\w.\-\[\],]+", part):
        raise ValueError(f"{part[:80]!r} in {text[:80]!r} is no host name")
    return part


def _expanded(part: str) -> Iterator[str]:
    found = _BRACKET.search(part)
    if found is None:
        yield part
        return
    for number in _numbers(found[1], part):
        for rest in _expanded(part[found.end() :]):
            yield part[: found.start()] + number + rest


def _numbers(text: str, part: str) -> Iterator[str]:
    for word in text.split(","):
        found = _RANGE.fullmatch(word)
        if found is None:
            raise ValueError(f"{word!r} in {part[:80]!r} is no number and no range")
        first, last = found[1], found[2] or found[1]
        if int(last) < int(first):
            raise ValueError(f"the range {word!r} in {part[:80]!r} runs backwards")
        for number in range(int(first), int(last) + 1):
            yield str(number).zfill(len(first))
