"""Whether a version lies in the range that the metadata of a wheel declares: the part of the version specifiers that wheels use.

A clause of another form counts as met: pip decides on those, when it installs the wheel.
"""

from __future__ import annotations

import re

_CLAUSE = re.compile(r"(~=|==|!=|<=|>=|<|>)\s*v?(\d+(?:\.\d+)*)((?:\.\*)?)((?:(?:a|b|rc|\.dev|\.post)\d+)*)$")
_VERSION = re.compile(r"v?(\d+(?:\.\d+)*)((?:(?:a|b|rc|\.dev|\.post)\d+)*)")
_PHASE = re.compile(r"(a|b|rc|\.dev|\.post)(\d+)")
# Before a release come its development versions, alphas, betas and candidates; after it its post-releases.
_ORDER = {".dev": -4, "a": -3, "b": -2, "rc": -1, ".post": 1}


def fits(version: str, clauses: str) -> bool:
    """Whether `version` meets all clauses, such as `>=0.1,<0.2`; also if it is a pre-release.

    >>> fits("0.1.3", ">=0.1,<0.2"), fits("0.2.0", ">=0.1,<0.2")
    (True, False)
    """
    found = _VERSION.match(version)
    return found is None or all(_meets(found[1], found[2], clause.strip()) for clause in clauses.split(",") if clause.strip())


def _meets(release: str, phase: str, clause: str) -> bool:
    found = _CLAUSE.match(clause)
    if found is None:
        return True
    operator, bound, star, bound_phase = found.groups()
    ours, theirs = _key(release, phase), _key(bound, bound_phase)
    if star or operator == "~=":
        prefix = _numbers(bound)[: None if star else -1]
        same = (_numbers(release) + (0,) * len(prefix))[: len(prefix)] == prefix
        return not same if operator == "!=" else same and (operator == "==" or ours >= theirs)
    if operator == "<" and not bound_phase and _strip(release) == _strip(bound):
        return False  # a pre-release of the bound is not below it
    return {"==": ours == theirs, "!=": ours != theirs, "<": ours < theirs, "<=": ours <= theirs, ">": ours > theirs, ">=": ours >= theirs}[
        operator
    ]


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split("."))


def _strip(release: str) -> tuple[int, ...]:
    numbers = _numbers(release)
    while len(numbers) > 1 and not numbers[-1]:
        numbers = numbers[:-1]
    return numbers


def _key(release: str, phase: str) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
    return _strip(release), (*((_ORDER[name], int(number)) for name, number in _PHASE.findall(phase)), (0, 0))
