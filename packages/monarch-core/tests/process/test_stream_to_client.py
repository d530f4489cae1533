"""Lines that procs of other hosts print, shown at the client on request."""

from __future__ import annotations

import re
from typing import Any

import pytest
from fresh_script import run
from worker_processes import Workers

SCRIPT = """
import asyncio
from monarch.actor import attach_to_workers
hosts = attach_to_workers(workers={addresses!r})
class Printer(Actor):
    @endpoint
    def say(self, text, stream=1):
        print(text, file=sys.stderr if stream == 2 else sys.stdout)
procs = hosts.spawn_procs(name="p")
printers = procs.spawn("printer", Printer)
printers.say.call("before").get()
{body}
"""


def lines_of(workers: Workers, body: str) -> tuple[list[str], Any]:
    done = run(SCRIPT.format(addresses=workers.addresses, body=body))
    assert done.code == 0, done
    return done.out.splitlines(), done


@pytest.fixture
def workers():
    with Workers(2) as found:
        yield found


def test_lines_appear_at_the_client(workers: Workers):
    body = """
asyncio.run(procs.logging_option(stream_to_client=True))
printers.say.call("streamed").get()
printers.slice(hosts=1).say.call("an error", 2).get()
procs.stop().get()
say("end")
"""
    lines, done = lines_of(workers, body)
    # Delivered before the stop is.
    assert lines[-1] == "end"
    found = sorted(lines[:-1])
    assert len(found) == 2
    for rank, line in enumerate(found):
        assert re.fullmatch(rf"\[\S+ .*p{{'hosts': {rank}/2}}.*\] streamed", line), line
    assert re.fullmatch(r"\[\S+ .*p{'hosts': 1/2}.*\] an error\n", done.err), done.err


def test_nothing_appears_unasked_or_when_it_has_been_ended(workers: Workers):
    body = """
asyncio.run(procs.logging_option(stream_to_client=True))
asyncio.run(procs.logging_option())
printers.say.call("alone").get()
procs.stop().get()
"""
    lines, done = lines_of(workers, body)
    assert (lines, done.err) == ([], "")


def test_what_is_counted_is_reported_at_the_client(workers: Workers):
    body = """
asyncio.run(procs.logging_option(stream_to_client=True, aggregate_window_sec=3600))
for n in range(5):
    printers.say.call(f"step {n}").get()
procs.stop().get()
"""
    lines, _ = lines_of(workers, body)
    assert len(lines) == 2
    assert all(re.fullmatch(r"\[\S+\] \[5 similar log lines\] \[\d\] step \d", line) for line in lines), lines


def test_exit_delivers_what_was_printed(workers: Workers):
    body = """
asyncio.run(procs.logging_option(stream_to_client=True))
for n in range(2000):
    printers.slice(hosts=0).say.broadcast(f"line {n}")
"""
    lines, _ = lines_of(workers, body)
    # The last one may be cut short: what is not drained within the grace of an exit is killed.
    numbers = [int(line.rpartition(" ")[2]) for line in lines[:-1]]
    assert numbers == list(range(len(numbers)))
    assert numbers
