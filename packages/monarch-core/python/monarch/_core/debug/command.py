"""The commands of the debugger's prompt, and the ranks that a `cast` names. Pure: text in, values out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

HELP = """\
l, list                                   all sessions: actor, rank, coordinates, host, function, line
a, attach <actor> <rank>                  a session's pdb; there, `detach` leads back here and leaves it as it is
cast <actor> ranks(<spec>) <pdb command>  one pdb command for several ranks; <spec> is 3, or 1,2,3, or start:stop:step
                                          (0, max, 1 if left out), or dim=<int, range or (a, b)>, ...
c, continue                               clears all breakpoints and lets every session go on
h, help                                   this
q, quit                                   leaves; the sessions stay as they are
"""

_ACTOR = re.compile(r"[-_a-zA-Z0-9]+")
_DIMENSION = re.compile(r"[^\W\d]\w*")
# Longer numbers are no ranks, and `int` refuses very long ones with another text.
_NUMBER = re.compile(r"[0-9]{1,18}")
_SIMPLE = {"l": "list", "c": "continue", "h": "help", "q": "quit"}


class ParseError(ValueError):
    """The input is no command; the text has the reason."""


class Attach(NamedTuple):
    actor: str
    rank: int


class Range(NamedTuple):
    """A range of numbers. `stop` is None if the range has no upper bound."""

    start: int
    stop: int | None
    step: int

    def __contains__(self, number: object) -> bool:
        if not isinstance(number, int) or number < self.start or (self.stop is not None and number >= self.stop):
            return False
        return (number - self.start) % self.step == 0


# One number, several numbers, or a range.
Numbers = tuple[int, ...] | Range


class Ranks(NamedTuple):
    """Ranks of a `cast`: either `numbers`, or for some dimensions the selected indices."""

    numbers: Numbers | None
    dimensions: Mapping[str, Numbers]

    def named(self) -> tuple[int, ...]:
        """The ranks that are listed one by one, each once, in order."""
        numbers = self.numbers
        return () if numbers is None or isinstance(numbers, Range) else tuple(sorted(set(numbers)))

    def matches(self, rank: int, coords: Mapping[str, int]) -> bool:
        """Whether the rank is selected; `ParseError` if the actor has no such dimension."""
        if self.numbers is not None:
            return rank in self.numbers
        unknown = [label for label in self.dimensions if label not in coords]
        if unknown:
            raise ParseError(f"no dimension {unknown[0]!r}, only {', '.join(map(repr, coords)) or 'a single rank'}")
        return all(coords[label] in numbers for label, numbers in self.dimensions.items())


class Cast(NamedTuple):
    actor: str
    ranks: Ranks
    command: str


# A command without arguments is its name.
Command = str | Attach | Cast


def parse(line: str) -> Command:
    """A line of the prompt, which must not be empty; `ParseError` if it is no command."""
    word, _, rest = line.strip().partition(" ")
    rest = rest.strip()
    name = _SIMPLE.get(word, word)
    if name in _SIMPLE.values():
        if rest:
            raise ParseError(f"{name} takes no arguments, not {rest!r}")
        return name
    if word in ("a", "attach"):
        return _attach(rest)
    if word == "cast":
        return _cast(rest)
    raise ParseError(f"no command {word!r}; enter help for a list of them")


def _attach(rest: str) -> Attach:
    words = rest.split()
    if len(words) != 2:
        raise ParseError("expected: attach <actor> <rank>")
    return Attach(_actor(words[0]), _number(words[1]))


def _cast(rest: str) -> Cast:
    usage = "expected: cast <actor> ranks(<spec>) <pdb command>"
    actor, _, rest = rest.partition(" ")
    rest = rest.strip()
    if not actor or not rest.startswith("ranks"):
        raise ParseError(usage)
    rest = rest[len("ranks") :].lstrip()
    end = _closing(rest)
    if end is None:
        raise ParseError(usage)
    command = rest[end + 1 :].strip()
    if not command:
        raise ParseError(f"there is no pdb command; {usage}")
    return Cast(_actor(actor), parse_ranks(rest[1:end]), command)


def _closing(text: str) -> int | None:
    """The position of the bracket that closes the one at the begin of the text."""
    depth = 0
    for at, character in enumerate(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth == 0:
            return at if at else None
    return None


def parse_ranks(spec: str) -> Ranks:
    """Parses the text between the brackets of `ranks(...)`; `ParseError` if it names no ranks."""
    if not spec.strip():
        raise ParseError("ranks() names no rank")
    if "=" not in spec:
        return Ranks(_numbers(spec), {})
    dimensions: dict[str, Numbers] = {}
    for part in _split(spec):
        label, equals, value = part.partition("=")
        label, value = label.strip(), value.strip()
        if not equals or not _DIMENSION.fullmatch(label):
            raise ParseError(f"expected <dimension>=<indices>, not {part.strip()!r}")
        if label in dimensions:
            raise ParseError(f"dimension {label!r} is there twice")
        if value.startswith("("):
            if not value.endswith(")"):
                raise ParseError(f"expected a closing bracket at the end of {value!r}")
            value = value[1:-1]
        elif "," in value:
            raise ParseError(f"expected brackets around {value!r}")
        dimensions[label] = _numbers(value)
    return Ranks(None, dimensions)


def _split(spec: str) -> Iterable[str]:
    """Splits at the commas outside brackets."""
    depth, start = 0, 0
    for at, character in enumerate(spec):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and depth == 0:
            yield spec[start:at]
            start = at + 1
    yield spec[start:]


def _numbers(text: str) -> Numbers:
    if ":" not in text:
        return tuple(_number(part) for part in text.split(","))
    parts = [part.strip() for part in text.split(":")]
    if len(parts) > 3:
        raise ParseError(f"expected start:stop:step, not {text.strip()!r}")
    start, stop, step = (_number(part) if part else None for part in (*parts, "")[:3])
    if step == 0:
        raise ParseError(f"the step of {text.strip()!r} is 0")
    return Range(start or 0, stop, step or 1)


def _number(text: str) -> int:
    text = text.strip()
    if not _NUMBER.fullmatch(text):
        raise ParseError(f"expected a number that is not negative, not {text!r}")
    return int(text)


def _actor(text: str) -> str:
    if not _ACTOR.fullmatch(text):
        raise ParseError(f"{text!r} is no name of an actor: these match {_ACTOR.pattern}")
    return text
