"""Commands of the debugger's prompt: accepted and refused ones, and the ranks of a spec."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._core.debug.command import Attach, Cast, ParseError, Range, Ranks, parse, parse_ranks

numbers = st.integers(0, 10**6)
labels = st.from_regex(r"[a-z_][a-z0-9_]{0,7}", fullmatch=True)
small = st.integers(0, 9)


def spaced(text: str, blanks: str) -> str:
    """The text with blanks at every place where they have no effect."""
    return blanks + "".join(blanks + c + blanks if c in ",:=()" else c for c in text) + blanks


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("l", "list"),
        ("list", "list"),
        ("c", "continue"),
        (" continue ", "continue"),
        ("h", "help"),
        ("help", "help"),
        ("q", "quit"),
        ("quit", "quit"),
        ("a work 1", Attach("work", 1)),
        ("attach  My-work_2   007", Attach("My-work_2", 7)),
        ("cast work ranks(1) n", Cast("work", Ranks((1,), {}), "n")),
        ("cast work ranks ( 1,2 ) p f(1), (2)", Cast("work", Ranks((1, 2), {}), "p f(1), (2)")),
        ("cast work ranks(gpus=(1, 2), hosts=:3)p x", Cast("work", Ranks(None, {"gpus": (1, 2), "hosts": Range(0, 3, 1)}), "p x")),
    ],
)
def test_understood(line: str, command: object) -> None:
    assert parse(line) == command


@pytest.mark.parametrize("line", ["x", "list 1", "lists", "a", "a work", "a work 1 2", "a w.k 1", "cast", "cast work", "cast work ranks"])
def test_malformed_command_is_refused(line: str) -> None:
    with pytest.raises(ParseError):
        parse(line)


@pytest.mark.parametrize(
    "spec",
    ["", " ", ",", "1,", "-1", "+1", "1.0", "a", "1:b", "1:2:3:4", "::0", "1,2:3", "gpus", "gpus=", "=1", "gpus=1,2", "gpus=(1", "gpus=()"]
    + ["gpus=1 hosts=2", "gpus=1,gpus=2", "gpus=1,", "1=2", "gpus==1", "gpus=(1,2),3", "\N{ARABIC-INDIC DIGIT ONE}", "9" * 19],
)
def test_malformed_ranks_are_refused(spec: str) -> None:
    with pytest.raises(ParseError):
        parse_ranks(spec)


@given(st.text())
def test_any_text_is_a_command_or_refused(text: str) -> None:
    for attempt in (lambda: parse("x" + text), lambda: parse("cast " + text), lambda: parse_ranks(text)):
        try:
            attempt()
        except ParseError as e:
            assert str(e)


@given(st.lists(numbers, min_size=1, max_size=6), st.sampled_from(["", " ", "  "]))
def test_numbers(wanted: list[int], blanks: str) -> None:
    ranks = parse_ranks(spaced(",".join(map(str, wanted)), blanks))
    assert ranks.named() == tuple(sorted(set(wanted)))
    assert all(ranks.matches(rank, {}) for rank in wanted)
    assert not ranks.matches(max(wanted) + 1, {})


def as_text(part: int | None) -> str:
    return "" if part is None else str(part)


@given(st.none() | small, st.none() | small, st.none() | st.integers(1, 5), st.sampled_from(["", " "]))
def test_range_is_pythons_slice(start: int | None, stop: int | None, step: int | None, blanks: str) -> None:
    text = f"{as_text(start)}:{as_text(stop)}:{as_text(step)}"
    for spec in (text, text.removesuffix(":")):
        ranks = parse_ranks(spaced(spec, blanks))
        assert [rank for rank in range(12) if ranks.matches(rank, {})] == list(range(12))[start:stop:step]
        assert ranks.named() == ()


@given(
    st.lists(labels, min_size=1, max_size=3, unique=True),
    st.data(),
    st.sampled_from(["", " "]),
)
def test_dimensions(names: list[str], data: st.DataObject, blanks: str) -> None:
    sizes = [data.draw(st.integers(1, 4)) for _ in names]
    chosen = [name for name in names if data.draw(st.booleans())] or names[:1]
    wanted = {name: data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=3)) for name in chosen}
    spec = ",".join(f"{name}={found[0]}" if len(found) == 1 else f"{name}=({','.join(map(str, found))})" for name, found in wanted.items())
    ranks = parse_ranks(spaced(spec, blanks))
    for place in product(*map(range, sizes)):
        coords = dict(zip(names, place, strict=True))
        assert ranks.matches(0, coords) == all(coords[name] in found for name, found in wanted.items())
    with pytest.raises(ParseError, match="no dimension"):
        ranks.matches(0, {"another one": 0})
