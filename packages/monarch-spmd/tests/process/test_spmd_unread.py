"""Failed runs whose results are never read: one line in the log, when their handles are gone or the client ends."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import pytest
from eventually import SOURCE, eventually

from monarch.spmd import SPMDFailure, SPMDRun

Start = Callable[..., SPMDRun]
Program = Callable[..., str]
CLIENT = f"""
import os, sys
import monarch.actor
from monarch.actor import this_host
from monarch.spmd import SPMDError, run
monarch.actor.unhandled_fault_hook = lambda failure: None
{SOURCE}
def ended(running):
    eventually("its end", lambda: repr(running).endswith("ended)"))
def begin(*words, **options):
    return run(this_host(), ["torchrun", *words], **options)
"""


def has_ended(running: SPMDRun) -> bool:
    return repr(running).endswith("ended)")


def test_collected_run_that_has_failed_is_reported_once(program: Program, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    running = start(program("raise ValueError('bad')"), run_id="r")
    eventually("its end", partial(has_ended, running))
    # The list of active runs drops it when the next one begins.
    start(program("", "good.py")).result.get()
    gc.collect()
    assert not caplog.records
    del running
    gc.collect()
    (one,) = caplog.records
    assert (one.name, one.levelname) == ("monarch.spmd", "ERROR")
    text = one.getMessage()
    assert (
        text.startswith("the run r has failed, and its result was not read: rank 0 (gpus=0, ")
        and "raised ValueError: bad; record: " in text
    )
    assert text.endswith("r/failure.json")


def test_other_ends_are_not_reported(program: Program, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    bad, waits = program("raise ValueError('bad')", "bad.py"), program("import signal; signal.pause()", "waits.py")
    read, stopped, good = start(bad), start(waits), start(program("", "good.py"))
    with pytest.raises(SPMDFailure):
        read.result.get()
    stopped.stop().get()
    for running in (read, stopped, good):
        eventually("its end", partial(has_ended, running))
    del read, stopped, good, running
    start(program("", "next.py")).result.get()
    gc.collect()
    assert not caplog.records


@pytest.mark.parametrize(
    ("text", "reports"),
    [
        (
            "kept = begin('bad.py', run_id='kept'); ended(kept)",
            ["the run kept has failed", "raised ValueError: bad; record: .monarch/runs/kept/"],
        ),
        ("ended(begin('none.py', run_id='r'))", ["the run r has failed", "program 'none.py' is not on this host"]),
        ("for name in 'ab': ended(begin('bad.py', run_id=name))", ["the run a has failed", "the run b has failed"]),
        ("begin('waits.py')", []),
        ("with begin('bad.py') as running: ended(running)\nif not isinstance(running.result.exception(), SPMDError): sys.exit(5)", []),
        # A fork has the handle as well, and is not its owner.
        (
            "kept = begin('bad.py', run_id='kept'); ended(kept)\nif os.fork() == 0: del kept; sys.exit(0)\nos.wait()",
            ["the run kept has failed"],
        ),
    ],
)
def test_unread_failures_at_the_end_of_the_client(program: Program, text: str, reports: list[str]) -> None:
    program("raise ValueError('bad')", "bad.py")
    program("import signal; signal.pause()", "waits.py")
    done = subprocess.run([sys.executable, "-W", "error", "-c", CLIENT + text], capture_output=True, text=True, timeout=25)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("its result was not read") == len([one for one in reports if one.startswith("the run")]), done.stderr
    for report in reports:
        assert report in done.stderr
