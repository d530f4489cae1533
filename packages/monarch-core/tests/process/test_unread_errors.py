"""Exceptions of Futures that the program never looks at: one line on stderr for each call."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap

import pytest

LINE = "monarch: the exception of a Future was never retrieved: "
ACTORS = """
    import gc
    from monarch.actor import Actor, endpoint, this_host

    class Work(Actor):
        @endpoint
        def fail(self, text="no data"):
            raise ValueError(text)

        @endpoint
        def good(self):
            return 1

    procs = this_host().spawn_procs({"procs": 2})
    workers = procs.spawn("workers", Work)
    one = workers.slice(procs=1)
"""


def lines(script: str) -> list[str]:
    """The lines of a script on stderr, which ends without an error."""
    code = textwrap.dedent(ACTORS) + textwrap.dedent(script)
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()


@pytest.mark.parametrize(
    "unread",
    [
        # Dropped before the answer, after the answer, and held at the end of the program.
        "one.fail.call_one('no data\\nat all'); one.good.call_one().get()",
        "future = one.fail.call_one()\nwhile not future._done(): one.good.call_one().get()\ndel future",
        "future = one.fail.call_one(); one.good.call_one().get()",
        "one.fail.choose(); one.good.call_one().get()",
    ],
)
def test_unread_exception_is_one_line(unread: str) -> None:
    (line,) = lines(unread)
    assert line.startswith(LINE)
    assert re.search(r"Work workers\{'procs': 1/2\}>\.fail\(\) raised ValueError: no data \(pid \d+ on ", line), line


@pytest.mark.parametrize(
    "read",
    [
        "one.fail.call_one().exception()",
        "workers.fail.call().exception(); workers.good.call().get()",
        "[future.exception() for future in workers.fail.stream()]",
        """
        import asyncio
        async def main():
            await asyncio.gather(*(one.fail.call_one() for _ in range(3)), return_exceptions=True)
        asyncio.run(main())
        """,
        "kept = one.fail.call_one(); kept.exception()",
        "one.good.call_one(); workers.good.call(); kept = one.good.call_one(); workers.good.call().get()",
    ],
)
def test_read_exception_is_silent(read: str) -> None:
    assert lines(read) == []


def test_mesh_call_has_one_line_at_most() -> None:
    assert len(lines("workers.fail.call(); workers.good.call().get()")) == 1
