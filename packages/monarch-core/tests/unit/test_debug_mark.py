"""Marks between the debug server and `monarch debug`: the result is the same for all fragmentations of the text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from monarch._core.debug.mark import PROMPT, MarkReader, mark, plain

pieces = st.lists(st.tuples(st.sampled_from(["", PROMPT, "X"]), st.text(max_size=8)), max_size=8)


def joined(found: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Text in one piece."""
    out: list[tuple[str, str]] = []
    for kind, text in found:
        if kind == "" and out and out[-1][0] == "":
            out[-1] = ("", out[-1][1] + text)
        elif kind or text:
            out.append((kind, text))
    return out


@given(pieces, st.lists(st.integers(0, 100), max_size=5))
def test_round_trip(sent: list[tuple[str, str]], cuts: list[int]) -> None:
    stream = "".join(mark(kind, text) if kind else plain(text) for kind, text in sent)
    reader = MarkReader()
    found: list[tuple[str, str]] = []
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    for start, end in zip(edges, edges[1:], strict=False):
        found += reader.feed(stream[start:end])
    assert joined(found) == joined([(kind, plain(text)) for kind, text in sent])


def test_text_is_given_at_once() -> None:
    reader = MarkReader()
    assert reader.feed("abc") == [("", "abc")]
    assert reader.feed("def\x01Pmonarch") == [("", "def")]
    assert reader.feed("_dbg> \x02ghi") == [("P", "monarch_dbg> "), ("", "ghi")]
