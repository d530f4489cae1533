"""Stacks as text: the output of faulthandler, and the merging of equal stacks."""

from __future__ import annotations

import threading

from monarch._core.cli.ps import duration
from monarch._core.cli.stack import _lines, merged, without_point
from monarch._core.process import stacks

DUMP = """Thread 0x00007f0000000010 (most recent call first):
  <no Python frame>

Current thread 0x00007f0000000020 [worker] (most recent call first):
  File "/a b/x.py", line 12 in inner
  File "/a b/x.py", line ??? in <module>
"""


def test_dump_is_parsed():
    assert stacks.parse_dump(DUMP) == [
        {"thread": 0x7F0000000010, "name": None, "frames": []},
        {"thread": 0x7F0000000020, "name": "worker", "frames": [("/a b/x.py", 12, "inner"), ("/a b/x.py", 0, "<module>")]},
    ]
    assert stacks.parse_dump("") == []


def test_threads_have_names_and_frames():
    begun, end = threading.Event(), threading.Event()

    def wait_here() -> None:
        begun.set()
        end.wait()

    thread = threading.Thread(target=wait_here, name="the one")
    thread.start()
    begun.wait()
    found = {one["name"]: one for one in stacks.threads()}
    end.set()
    thread.join()
    assert found["the one"]["thread"] == thread.ident
    # The running function is named, from the inside out.
    names = [name.rsplit(".", 1)[-1] for _, _, name in found["the one"]["frames"]]
    assert names.index("wait_here") < names.index("run")


def test_procs_are_merged_by_mesh():
    procs = [f"<root>.<workers{{'hosts': {h}/2, 'gpus': {g}/4}}>" for h in range(2) for g in range(4)]
    assert merged(procs) == "<root>.<workers>[0-7]"
    assert merged([procs[0], procs[2], procs[3], procs[7], "client"]) == "<root>.<workers>[0,2-3,7], client"
    assert merged(["<root>.<single>"]) == "<root>.<single>"
    assert without_point("<root>.<m.A a{'x': 0/2}>.<n.B b{'y': 1/3}>") == "<root>.<m.A a>.<n.B b>"


def test_equal_stacks_are_printed_once():
    frames = [["/u/train.py", 7, "step"], ["/u/train.py", 20, "run"]]
    procs = [
        {
            "uid": f"{rank:x}",
            "name": f"<root>.<workers{{'gpus': {rank}/1000}}>",
            "pid": rank,
            "silent": None,
            "evidence": None,
            "kernel": "S",
            "state": "running",
            "answer": {"threads": [{"thread": 1, "name": "trainer", "frames": frames}]},
        }
        for rank in range(1000)
    ]
    procs[500]["answer"] = None
    procs[500]["evidence"] = "stopped by a signal"
    procs[500]["silent"] = 61.0
    lines = _lines({"procs": procs}, None, False)
    assert lines == [
        "<root>.<workers{'gpus': 500/1000}> (pid 500) does not answer for 1m01s: stopped by a signal",
        "999 x trainer in <root>.<workers>[0-499,501-999]",
        '    File "/u/train.py", line 20, in run',
        '    File "/u/train.py", line 7, in step',
    ]


def test_durations():
    assert [duration(s) for s in (0.04, 59.96, 61, 3599, 3600, 47 * 3600, 48 * 3600)] == [
        "0.0s",
        "60.0s",
        "1m01s",
        "59m59s",
        "1h00m",
        "47h00m",
        "2d00h",
    ]
