"""Output lines of procs of other hosts, shown at the client on request."""

from __future__ import annotations

import re
from pathlib import Path
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

NOTICE = (
    r"monarch: host\.output: what \S+p{'hosts': [01]/2}\S* on \S+ prints goes to the output of the worker \(pid \d+\), not to this console;"
    r" `await procs\.logging_option\(stream_to_client=True\)` shows it here too, and `monarch logs` that of a job's workers\n"
)


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
    # The lines are delivered before the stop is answered.
    assert lines[-1] == "end"
    found = sorted(lines[:-1])
    assert len(found) == 2
    for rank, line in enumerate(found):
        assert re.fullmatch(rf"\[\S+ .*p{{'hosts': {rank}/2}}.*\] streamed", line), line
    # The notice of the previous line comes from the host, in any order with lines of the other one.
    assert re.search(NOTICE, done.err), done.err
    assert re.fullmatch(r"\[\S+ .*p{'hosts': 1/2}.*\] an error\n", re.sub(NOTICE, "", done.err)), done.err


def test_output_is_not_streamed_without_the_option(workers: Workers):
    body = """
asyncio.run(procs.logging_option(stream_to_client=True))
asyncio.run(procs.logging_option())
printers.say.call("alone").get()
procs.stop().get()
"""
    lines, done = lines_of(workers, body)
    assert lines == []
    # The notice appears once, though both hosts and several lines are concerned.
    assert re.fullmatch(NOTICE, done.err), done.err


def test_no_notice_of_lines_that_are_shown(workers: Workers):
    streamed = SCRIPT.replace('printers.say.call("before").get()', "").format(
        addresses=workers.addresses,
        body="asyncio.run(procs.logging_option(stream_to_client=True)); printers.say.call('streamed').get(); procs.stop().get()",
    )
    # The hosts have inherited the console of the client.
    shared = """
import asyncio
from monarch.actor.testing import local_hosts
class Printer(Actor):
    @endpoint
    def say(self, text):
        print(text, flush=True)
async def main():
    async with local_hosts(2) as hosts:
        procs = hosts.spawn_procs(name="p")
        await procs.spawn("printer", Printer).say.call("shown")
        await procs.stop()
asyncio.run(main())
"""
    for source, word in ((streamed, "streamed"), (shared, "shown")):
        done = run(source)
        assert (done.code, done.err, done.out.count(word)) == (0, "", 2), done


def test_notice_names_the_file_of_the_worker(tmp_path: Path):
    with open(tmp_path / "worker.log", "wb") as log, Workers(1, stderr=log) as workers:
        body = "printers.say.call('kept', 2).get(); procs.stop().get()"
        source = SCRIPT.replace('printers.say.call("before").get()', "").format(addresses=workers.addresses, body=body)
        done = run(source)
    assert f"prints goes to {tmp_path / 'worker.log'}, not to this console" in done.err
    assert "kept" in (tmp_path / "worker.log").read_text()


def test_aggregated_lines_are_reported_at_the_client(workers: Workers):
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
    # The last line may be cut short: output that is not drained within the grace of an exit is lost.
    numbers = [int(line.rpartition(" ")[2]) for line in lines[:-1]]
    assert numbers == list(range(len(numbers)))
    assert numbers
