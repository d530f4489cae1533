"""The check whether a version lies in the range that the metadata of a wheel declares, for the version specifiers that wheels use.

A clause of another form counts as met: pip decides on those when it installs the wheel. Regular expressions are not used, because their
module takes longer to load than all other modules here.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    # The numbers of a release without zeros at its end, and its phases: development, alpha, beta, candidate, final, post.
    Version: TypeAlias = tuple[tuple[int, ...], tuple[tuple[int, int], ...]]

# Longer operators first.
_OPERATORS = ("~=", "==", "!=", "<=", ">=", "<", ">")
# Before a release come its development versions, alphas, betas and candidates; after it its post-releases.
_PHASES = {".dev": -4, "a": -3, "b": -2, "rc": -1, ".post": 1}
_FINAL = (0, 0)


def fits(version: str, clauses: str) -> bool:
    """Whether `version` meets all clauses, such as `>=0.1,<0.2`; also if it is a pre-release.

    >>> fits("0.1.3", ">=0.1,<0.2"), fits("0.2.0", ">=0.1,<0.2")
    (True, False)
    """
    ours = _parsed(version.partition("+")[0])
    return ours is None or all(_meets(ours, clause.strip()) for clause in clauses.split(",") if clause.strip())


def _meets(ours: Version, clause: str) -> bool:
    operator = next((one for one in _OPERATORS if clause.startswith(one)), "")
    text = clause[len(operator) :].strip()
    star = text.endswith(".*")
    bound = text.removesuffix(".*")
    theirs = _parsed(bound)
    if not operator or theirs is None:
        return True
    if star or operator == "~=":
        prefix = tuple(map(int, bound.split("."))) if bound.replace(".", "").isdigit() else theirs[0]
        if not star:
            prefix = prefix[:-1]
        same = (ours[0] + (0,) * len(prefix))[: len(prefix)] == prefix
        return not same if operator == "!=" else same and (operator == "==" or ours >= theirs)
    if operator == "<" and ours[0] == theirs[0] and theirs[1] == (_FINAL,):
        return False  # a pre-release of the bound is not below the bound
    found = (ours > theirs) - (ours < theirs)
    return {"==": found == 0, "!=": found != 0, "<": found < 0, "<=": found <= 0, ">": found > 0, ">=": found >= 0}[operator]


def _parsed(text: str) -> Version | None:
    """The parsed version; None if the text is no version of digits and phases."""
    text = text.lower().removeprefix("v")
    end = next((i for i, c in enumerate(text) if not (c.isdigit() or c == "." and text[i + 1 : i + 2].isdigit())), len(text))
    release, rest = text[:end], text[end:]
    if not release or not release[0].isdigit():
        return None
    numbers = [int(part) for part in release.split(".")]
    while len(numbers) > 1 and not numbers[-1]:
        del numbers[-1]
    phases: list[tuple[int, int]] = []
    while rest:
        name = next((one for one in _PHASES if rest.startswith(one)), None)
        if name is None:
            return None
        rest = rest.removeprefix(name)
        digits = len(rest) - len(rest.lstrip("0123456789"))
        phases.append((_PHASES[name], int(rest[:digits] or "0")))
        rest = rest[digits:]
    return tuple(numbers), (*phases, _FINAL)
