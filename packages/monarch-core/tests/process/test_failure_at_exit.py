"""The last lines of a script that a failure without a reader interrupts."""

from __future__ import annotations

import pytest
from fresh_script import run

ACTOR = """
class Work(Actor):
    def __init__(self, raises):
        if raises:
            raise ValueError("no data")

    @endpoint
    def fail(self):
        raise ValueError("no data")

procs = this_host().spawn_procs({"procs": 2})
"""


@pytest.mark.parametrize("failing", ["procs.spawn('work', Work, True)", "procs.spawn('work', Work, False).fail.broadcast()"])
def test_last_line_names_the_failure(failing: str) -> None:
    done = run(ACTOR + failing + "\nthreading.Event().wait(20)\n")
    lines = done.err.splitlines()
    assert done.code == 1 and lines[-2] == "KeyboardInterrupt", done.err
    assert lines[-1].startswith("monarch: the program was interrupted because of a failure: The actor <root>."), done.err
    assert "ValueError: no data (pid " in lines[-1]


def test_script_without_interrupt_has_one_report() -> None:
    done = run(ACTOR + "procs.spawn('work', Work, True)\n")
    assert done.code == 1 and done.err.count("The actor <root>.") == 1, done.err
