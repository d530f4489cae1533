"""A call is in flight until its answer, also if this process answers it itself and a Future of it is held."""

from __future__ import annotations

from worker_processes import Workers

from monarch._core.process.current import current_process
from monarch.actor import attach_to_workers, this_host
from monarch.extension import promise


def in_flight() -> int:
    this_host()
    return current_process().native.stats()[0]


def test_promise_that_is_set() -> None:
    before = in_flight()
    made = promise("a value")
    assert in_flight() == before + 1
    made.set_result(7)
    assert in_flight() == before
    assert made.future.get() == 7


def test_hosts_that_are_attached_twice() -> None:
    with Workers(2, "unix") as workers, workers.attach() as hosts:
        hosts.initialized.get()
        before = in_flight()
        again = attach_to_workers(workers=workers.addresses, **workers.trust())
        again.initialized.get()
        assert in_flight() == before
