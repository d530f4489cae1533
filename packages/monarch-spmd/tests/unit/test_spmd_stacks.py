"""Stacks of many ranks as one text."""

from __future__ import annotations

from monarch.spmd.stacks import merged, spans


def test_ranks_at_the_same_place_are_named_together() -> None:
    waits = 'Current thread 0x00007f{} (most recent call first):\n  File "a.py", line 3 in wait\n'
    text = merged({0: waits.format("01"), 1: waits.format("02"), 2: 'File "a.py", line 9 in load', 3: waits.format("03"), 4: ""})
    assert text.split("\n") == [
        "ranks 0-1, 3:",
        "  Current thread (most recent call first):",
        '    File "a.py", line 3 in wait',
        "rank 2:",
        '  File "a.py", line 9 in load',
        "rank 4:",
        "  no stacks: not a Python program, or it does not answer",
    ]


def test_spans() -> None:
    assert spans([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"
