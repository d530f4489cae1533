"""Stacks of many ranks as one text."""

from __future__ import annotations

from monarch.spmd.stacks import merged, of_program, spans


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


DUMP = """
  File "/cut/off.py", line 1 in middle
Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait

Current thread 0x00007f02 (most recent call first):
  File "/usr/lib/python3.11/queue.py", line 171 in get
  File "/project/data.py", line 3 in load
  File "/project/data.py", line 9 in <module>
  File "<frozen importlib._bootstrap>", line 241 in _call_with_frames_removed
  File "<frozen importlib._bootstrap_external>", line 940 in exec_module
  File "/project/train.py", line 1 in <module>
  File "/usr/lib/python3.11/runpy.py", line 88 in _run_code
  File "<frozen runpy>", line 198 in _run_module_as_main
  File "/site-packages/monarch/spmd/start_program.py", line 117 in _run
  File "/site-packages/monarch/spmd/start_program.py", line 196 in <module>
"""


def test_stack_begins_with_the_line_of_the_program() -> None:
    """Also where it stands in an import: the first own frame is the statement of the program."""
    lines = {("/project/train.py", 1): "import data\n", ("/project/data.py", 3): "    return items.get()\n"}
    assert of_program(DUMP, lambda file, number: lines.get((file, number), "")).split("\n") == [
        "Current thread 0x00007f02 (most recent call last):",
        '  File "/project/train.py", line 1, in <module>',
        "    import data",
        '  File "/project/data.py", line 9, in <module>',
        '  File "/project/data.py", line 3, in load',
        "    return items.get()",
        '  File "/usr/lib/python3.11/queue.py", line 171, in get',
        "Thread 0x00007f01 (most recent call last):",
        '  File "/usr/lib/python3.11/threading.py", line 327, in wait',
    ]


def test_dump_without_threads_is_empty() -> None:
    assert of_program("", lambda file, number: "") == "" == of_program("garbage\n  ...\n", lambda file, number: "")


def test_frames_that_are_left_out_come_first() -> None:
    dump = 'Current thread 0x01 (most recent call first):\n  File "a.py", line 2 in f\n  ...\n'
    assert of_program(dump, lambda file, number: "").split("\n")[1:] == ["  ...", '  File "a.py", line 2, in f']


def test_spans() -> None:
    assert spans([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"
