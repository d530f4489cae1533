"""JSON that is nested deeper than a decoder can follow."""

from __future__ import annotations

import json
from typing import Any

import pytest

from monarch.job.kubernetes.access.decoding import CUT, DEEPEST, decode


@pytest.mark.parametrize("opened", ["[", '{"a]":', '{"a\\\\":[{"\\"b":'])
def test_one_deep_object_hides_no_other(opened: str) -> None:
    closed = "".join({"[": "]", "{": "}"}[letter] for letter in reversed(opened.replace("a]", "")) if letter in "[{")
    # The decoder of CPython 3.13 takes 9,000 levels.
    deep = opened * 100_000 + "1" + closed * 100_000
    text = json.dumps({"items": [{"name": "before"}, "DEEP", {"name": 'after"]'}], "last": [[1]]}).replace('"DEEP"', deep)
    found = decode(text.encode())
    assert found["items"][0] == {"name": "before"} and found["items"][2] == {"name": 'after"]'} and found["last"] == [[1]]
    depth, below = 2, found["items"][1]
    while not isinstance(below, str):
        (below,) = below.values() if isinstance(below, dict) else below
        depth += 1
    assert (depth, below) == (DEEPEST - 1, CUT)


def test_other_json_is_as_ever() -> None:
    value: Any = {"a": [1, None, True, "[{"], "b": {}}
    assert decode(json.dumps(value).encode()) == value
    with pytest.raises(ValueError, match="Expecting"):
        decode(b"[")
