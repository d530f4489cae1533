"""Host lists against a model: names that are put together with their expansion."""

from __future__ import annotations

import itertools
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch.job._slurm.hostlist import LIMIT, expand

_WORDS = st.text(alphabet="abcn-_.", min_size=1, max_size=4)


@st.composite
def _ranges(draw: st.DrawFn) -> tuple[str, list[str]]:
    width = draw(st.integers(1, 3))
    texts: list[str] = []
    numbers: list[str] = []
    for first, length in draw(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 3)), min_size=1, max_size=3)):
        own = [str(number).zfill(width) for number in range(first, first + length + 1)]
        texts.append(own[0] if length == 0 else f"{own[0]}-{own[-1]}")
        numbers += own if len(own[0]) == len(str(first).zfill(width)) else []
    return f"[{','.join(texts)}]", numbers


@st.composite
def _names(draw: st.DrawFn) -> tuple[str, list[str]]:
    parts = [draw(st.one_of(_WORDS.map(lambda word: (word, [word])), _ranges())) for _ in range(draw(st.integers(1, 3)))]
    parts = [("n", ["n"]), *parts]
    return "".join(text for text, _ in parts), ["".join(words) for words in itertools.product(*(found for _, found in parts))]


@given(st.lists(_names(), max_size=4))
def test_expands_as_it_was_put_together(parts: list[tuple[str, list[str]]]) -> None:
    assert expand(",".join(text for text, _ in parts)) == [name for _, names in parts for name in names]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("n0", ["n0"]),
        ("n[0-2,7],gpu[01-02]-ib", ["n0", "n1", "n2", "n7", "gpu01-ib", "gpu02-ib"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("rack[0-1]n[0-1]", ["rack0n0", "rack0n1", "rack1n0", "rack1n1"]),
    ],
)
def test_lists_as_slurm_prints_them(text: str, names: list[str]) -> None:
    assert expand(text) == names
    if text and shutil.which("scontrol"):
        shown = subprocess.run(["scontrol", "show", "hostnames", text], capture_output=True, text=True, env={"SLURM_CONF": "/dev/null"})
        assert shown.returncode or shown.stdout.split() == names


@pytest.mark.parametrize(
    "text", ["n[0-2", "n0]", "n[[0]]", "n[]", "n[a-b]", "n[3-1]", "n0,,n1", ",", "n 0", "n0;rm", f"n[0-{LIMIT}]", "$(x)"]
)
def test_what_is_no_list(text: str) -> None:
    with pytest.raises(ValueError):
        expand(text)
