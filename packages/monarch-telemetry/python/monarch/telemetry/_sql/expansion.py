"""How large a statement is when what it names is put in place: a first gate, by its text, before anything is planned.

A plan may be far larger than its text: a table expression that is used twice by one that is used twice stands there four times, `CUBE` of n
expressions is 2^n groupings, and columns that are named three times in each of twelve levels are half a million. Statements that pass are
planned within limits of time and memory all the same: this gate only reports sooner what is too much, and why.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from monarch.telemetry.errors import QueryError

# The most table expressions, groupings of one SELECT, and mentions of one column.
MOST_REFERENCES, MOST_GROUPINGS, MOST_MENTIONS = 4096, 4096, 1 << 20
# Strings and comments are skipped; a quoted name is a name.
_TOKEN = re.compile(r"'[^']*'|--[^\n]*|/\*.*?\*/|\"((?:[^\"]|\"\")*)\"|(\w+)|([(),])", re.DOTALL)
_NEEDED = re.compile(r"\b(?:WITH|CUBE|ROLLUP|SETS)\b", re.IGNORECASE)


def check(sql: str) -> None:
    """`QueryError` for a statement that is too large with all that it names."""
    if not _NEEDED.search(sql):
        return
    tokens = list(_tokens(sql))
    ends = _ends(tokens)
    groupings = _groupings(tokens, ends)
    if groupings > MOST_GROUPINGS:
        hint = "CUBE of n expressions has 2^n grouping sets; those of several CUBE, ROLLUP and GROUPING SETS are multiplied"
        raise QueryError(f"GROUP BY: a statement has at most {MOST_GROUPINGS:,} grouping sets", hint=hint)
    references, mentions = _expanded(tokens, ends)
    if references > MOST_REFERENCES:
        hint = "an expression of WITH stands in each place that names it, with all that it names itself"
        raise QueryError(f"WITH: a statement has at most {MOST_REFERENCES:,} references to its expressions", hint=hint)
    if mentions > MOST_MENTIONS:
        hint = "columns of an expression of WITH are computed in each place that names them"
        raise QueryError(f"WITH: a statement names a column at most {MOST_MENTIONS:,} times, expressions of WITH put in place", hint=hint)


def _tokens(sql: str) -> Iterator[str]:
    """Names in lower case, brackets and commas."""
    for quoted, word, sign in _TOKEN.findall(sql):
        if quoted or word or sign:
            yield sign or word.lower() or quoted.replace('""', '"').lower()


def _ends(tokens: Sequence[str]) -> dict[int, int]:
    """The place of the bracket that closes, by that of the one that opens; the last place where none does."""
    ends: dict[int, int] = {}
    opened: list[int] = []
    for at, token in enumerate(tokens):
        if token == "(":
            opened.append(at)
        elif token == ")" and opened:
            ends[opened.pop()] = at
    return ends | dict.fromkeys(opened, len(tokens) - 1)


def _groupings(tokens: Sequence[str], ends: dict[int, int]) -> int:
    """Of the SELECT that has most: those of one GROUP BY are multiplied. GROUPING SETS of CUBEs has the sum of them."""
    most = found = 1
    at = 0
    while at < len(tokens):
        token = tokens[at]
        if token == "select":
            most, found = max(most, found), 1
        elif token in {"cube", "rollup", "sets"} and at + 1 in ends:
            found *= _sets(tokens, ends, at)
            at = ends[at + 1]
        # A large number is not multiplied further: the result would have thousands of digits.
        if found > MOST_GROUPINGS:
            return found
        at += 1
    return max(most, found)


def _sets(tokens: Sequence[str], ends: dict[int, int], at: int) -> int:
    """The grouping sets of the CUBE, ROLLUP or SETS at this place."""
    end, depth, parts, inner = ends[at + 1], 0, 1, 0
    place = at + 2
    while place < end:
        token = tokens[place]
        if token in {"cube", "rollup", "sets"} and depth == 0 and place + 1 in ends:
            inner += _sets(tokens, ends, place) - 1
            place = ends[place + 1]
        elif token == "," and depth == 0:
            parts += 1
        else:
            depth += (token == "(") - (token == ")")
        place += 1
    if tokens[at] == "cube":
        return 1 << min(parts, 64)
    return parts + (1 if tokens[at] == "rollup" else inner)


def _expanded(tokens: Sequence[str], ends: dict[int, int]) -> tuple[int, int]:
    """References to table expressions, and mentions of the column that is named most, with the expressions in all their places."""
    # By the name of an expression: the size of a reference to it.
    sizes: dict[str, tuple[int, int]] = {}
    # By the position of its end, so that one comes after those within or before it, which are those that it can name.
    bodies = {ends[at + 2]: (tokens[at], at + 2) for at in range(len(tokens) - 2) if tokens[at + 1] == "as" and tokens[at + 2] == "("}
    for end in sorted(bodies):
        name, start = bodies[end]
        sizes[name] = _size(tokens[start + 1 : end], sizes)
    # The last one extends to the end of the statement, in addition to the expressions.
    inside = {at for end, (_, start) in bodies.items() for at in range(start, end)}
    return _size([token for at, token in enumerate(tokens) if at not in inside], sizes, beside=len(bodies))


def _size(tokens: Sequence[str], sizes: dict[str, tuple[int, int]], beside: int = 0) -> tuple[int, int]:
    """`beside`: so many names are those of the expressions themselves."""
    named = [(count, sizes[name]) for name, count in Counter(tokens).items() if name in sizes]
    references = sum(count * (1 + size) for count, (size, _) in named) - beside
    mentions = _mentions(tokens) * max((size for _, (_, size) in named), default=1)
    return min(max(references, 0), _MUCH), min(mentions, _MUCH)


def _mentions(tokens: Sequence[str]) -> int:
    """How often one column of an answer names another one, at most."""
    most, depth = 1, 0
    item: Counter[str] | None = None
    for at, token in enumerate(tokens):
        depth += (token == "(") - (token == ")")
        if depth == 0 and token in {"select", "from", ","}:
            item = None if item is None and token == "," or token == "from" else Counter()
        elif item is not None and token not in _WORDS and not token.isdigit() and tokens[at - 1] != "as":
            item[token] += 1
            most = max(most, item[token])
    return most


_MUCH = 1 << 62
_WORDS = frozenset("( ) , and or not case when then else end as is in null like between cast distinct".split())
