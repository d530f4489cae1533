"""Deadlines: the errors at their end, the work that they end, and the code that inherits them."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import re
import signal
import time
from pathlib import Path

import pytest
from deadline_actors import Async, Slow, Sync
from eventually import eventually
from fresh_script import run

from monarch._core.observe.inspection import STATE
from monarch._core.process.current import current_process
from monarch.actor import (
    ActorError,
    Channel,
    DeadlineExceeded,
    MonarchError,
    PartialValues,
    Port,
    deadline,
    deadline_left,
    endpoint,
    per_rank,
    returns_future,
    send,
    this_host,
)
from monarch.actor.testing import local_hosts

# Seconds that no test waits for, and seconds that a test waits for.
LONG, SHORT = 60.0, 0.3


@pytest.fixture(scope="module")
def procs():
    mesh = this_host().spawn_procs({"gpus": 3})
    yield mesh
    mesh.stop().get()


@pytest.fixture
def workers(procs):
    mesh = procs.spawn("workers", Sync)
    mesh.rank.call().get()
    yield mesh
    mesh.stop().get()


@pytest.fixture
def loops(procs):
    mesh = procs.spawn("loops", Async)
    mesh.endings.call().get()
    yield mesh
    mesh.stop().get()


def states(mesh):
    """The actors of a mesh in the agent's inspection."""
    cell = current_process().native.inspect(STATE)
    cell.wait()
    found = json.loads(cell.results()[0].raw())
    actors = [actor for proc in found["procs"] if proc["answer"] for actor in proc["answer"]["actors"]]
    return [actor for actor in actors if actor["mesh"] == f"{mesh.__core__.info.uid:016x}"]


def in_flight():
    """The calls of this process that have no answer."""
    return current_process().native.stats()[0]


def dropped_messages():
    cell = current_process().native.inspect(STATE)
    cell.wait()
    found = json.loads(cell.results()[0].raw())
    return sum(proc["answer"]["expired_messages"] for proc in found["procs"] if proc["answer"])


def stop(pid):
    """Stops a process; returns when all its threads have stopped."""
    os.kill(pid, signal.SIGSTOP)
    eventually(
        "the stop",
        lambda: {stat.read_text().rpartition(")")[2].split()[0] for stat in Path(f"/proc/{pid}/task").glob("*/stat")},
        {"T"}.__eq__,
    )


# ---- the block


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), -float("inf")])
def test_impossible_seconds_are_refused(seconds):
    with pytest.raises(ValueError, match="deadline="):
        deadline(seconds)
    with pytest.raises(ValueError, match="timeout="):
        endpoint(timeout=seconds)(lambda self: None)


@pytest.mark.parametrize("seconds", ["5", True, b"", [1]])
def test_value_that_is_no_number_is_refused(seconds):
    with pytest.raises(TypeError, match=r"deadline=.*expected seconds"):
        deadline(seconds)
    with pytest.raises(TypeError, match=r"timeout=.*expected seconds"):
        endpoint(timeout=seconds)(lambda self: None)


def test_earlier_deadline_holds():
    assert deadline_left() is None
    with deadline(LONG):
        outer = deadline_left()
        with deadline(2 * LONG):
            assert deadline_left() <= outer
        with deadline(1):
            assert deadline_left() <= 1
            with deadline(None):
                assert deadline_left() is None
                with deadline(LONG):
                    assert 1 < deadline_left() <= LONG
        assert 1 < deadline_left() <= outer
    assert deadline_left() is None


def test_block_can_be_entered_again():
    block = deadline(LONG)
    with block, block:
        assert deadline_left() <= LONG
    assert deadline_left() is None


def test_exception_leaves_the_block():
    with pytest.raises(KeyError), deadline(LONG):
        raise KeyError
    assert deadline_left() is None


# ---- the error


def test_error_has_the_answers_and_the_states(workers):
    with deadline(SHORT):
        error = workers.train.call(3, 1).exception()
    assert isinstance(error, DeadlineExceeded) and isinstance(error, MonarchError) and isinstance(error, TimeoutError)
    assert (error.code, error.missing) == ("deadline_exceeded", [1])
    assert isinstance(error.values, PartialValues) and error.values.ranks == [0, 2] and error.values.values() == [0, 2]
    assert [(point["gpus"], value) for point, value in error.values] == [(0, 0), (2, 2)]
    assert 1 not in error.values
    first, state, hint = str(error).split("\n")
    assert first == "workers.train(): 2 of 3 ranks have answered at the deadline"
    assert state.startswith("  rank 1: running since 0.") and "deadline_actors.py:" in state and state.endswith(" in train")
    assert hint.startswith("  hint: ")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.missing, again.values.values(), again.code) == (str(error), [1], [0, 2], "deadline_exceeded")


def test_queued_calls_name_the_work_before_them(workers):
    running = workers.train.call(2)
    with deadline(SHORT):
        error = workers.rank.call().exception()
    assert isinstance(error, DeadlineExceeded) and error.missing == [0, 1, 2]
    assert str(error).split("\n")[1].startswith("  ranks 0-2: queued behind train since 0.")
    assert running.get().values() == [0, 1, 2]


def test_expired_message_never_begins(workers):
    before = dropped_messages()
    running = workers.train.call(1)
    with deadline(SHORT):
        future = workers.note.call("dropped")
        workers.note.broadcast("dropped too")
    assert isinstance(future.exception(), DeadlineExceeded)
    running.get()
    assert workers.note.call("kept").get().values() == [["kept"]] * 3
    assert dropped_messages() - before == 6


def test_late_answer_is_dropped(workers):
    native = current_process().native
    with deadline(SHORT):
        future = workers.train.call(1)
    assert isinstance(future.exception(), DeadlineExceeded)
    before = native.stats()[2]
    eventually("the late answers", lambda: native.stats()[2], lambda n: n >= before + 3)
    assert isinstance(future.exception(), DeadlineExceeded)
    assert workers.rank.call().get().values() == [0, 1, 2]


def test_answer_in_time_is_a_value(workers):
    before = in_flight()
    with deadline(LONG):
        left = workers.left.call().get().values()
        assert all(0 < one <= LONG for one in left)
        assert workers.rank.choose().get() in (0, 1, 2)
        assert workers.slice(gpus=1).rank.call_one().get() == 0
        assert sorted(f.get() for f in workers.rank.stream()) == [0, 1, 2]
    assert workers.left.call().get().values() == [None] * 3
    assert in_flight() <= before


def test_error_of_an_endpoint_precedes_the_deadline(workers):
    with deadline(LONG), pytest.raises(ActorError):
        workers.slice(gpus=0).nested.call_one([5], 0).get()


def test_unpicklable_late_answer_harms_nothing(workers):
    with deadline(SHORT):
        error = workers.later.call(0.8).exception()
    assert isinstance(error, DeadlineExceeded)
    assert workers.rank.call().get().values() == [0, 1, 2]


def test_zero_seconds_send_nothing(workers):
    with deadline(0):
        assert deadline_left() == 0
        error = workers.note.call("never").exception()
        with pytest.raises(DeadlineExceeded):
            workers.note.broadcast("never")
        with pytest.raises(DeadlineExceeded):
            workers.rank.choose().get()
    assert isinstance(error, DeadlineExceeded)
    assert "ranks 0-2: not sent: the deadline had passed" in str(error)
    assert workers.note.call("once").get().values() == [["once"]] * 3


def test_half_read_stream_ends_at_the_deadline(workers):
    with deadline(SHORT):
        futures = list(workers.train.stream(3, 2))
    first = {futures[0].get(), futures[1].get()}
    error = futures[2].exception()
    assert first == {0, 1}
    assert isinstance(error, DeadlineExceeded) and error.missing == [2] and error.values.ranks == [0, 1]


def test_awaiting_task_gets_the_error(workers):
    async def main():
        with deadline(SHORT):
            waits = [asyncio.create_task(call()) for _ in range(3)]
        return await asyncio.gather(*waits, return_exceptions=True)

    async def call():
        return await workers.train.call(1)

    errors = asyncio.run(main())
    assert [type(error) for error in errors] == [DeadlineExceeded] * 3


def test_cancelled_future_leaves_nothing(workers):
    before = in_flight()

    async def main():
        with deadline(SHORT):
            waiting = workers.train.call(1).as_asyncio()
        waiting.cancel()
        await asyncio.sleep(0)

    asyncio.run(main())
    assert workers.rank.call().get().values() == [0, 1, 2]
    assert in_flight() <= before


def test_lazy_future_inherits_the_deadline(workers):
    @returns_future
    async def later():
        return deadline_left(), await workers.left.call()

    with deadline(LONG):
        future = later()
    left, all_left = future.get()
    assert 0 < left <= LONG and all(0 < one <= left for one in all_left.values())


def test_port_gets_the_error_of_each_rank(workers):
    port, receiver = Channel[int].open()
    with deadline(SHORT):
        send(workers.train, (2, 0), {}, port)
    found = sorted((receiver.recv().exception(LONG) is None for _ in range(3)), reverse=True)
    assert found == [True, True, False]


def test_owed_answer_is_named(workers):
    with deadline(SHORT):
        error = workers.owed.call().exception()
    assert "ranks 0-2: returned, without a message to its port" in str(error)


# ---- the receivers


def test_async_endpoint_is_cancelled(loops):
    with deadline(SHORT):
        error = loops.wait.call().exception()
    assert isinstance(error, DeadlineExceeded) and error.missing == [0, 1, 2]
    assert "running since 0." in str(error) and " in wait" in str(error)
    assert loops.endings.call().get().values() == [["wait cancelled", "wait finally"]] * 3
    assert loops.left.call().get().values() == [None] * 3


def test_endpoint_may_refuse_its_cancellation(loops):
    with deadline(SHORT):
        error = loops.stubborn.call().exception()
    assert isinstance(error, DeadlineExceeded)
    # The dispatcher of the actor is not cancelled by what is left of it.
    with deadline(LONG):
        assert loops.endings.call().get().values() == [[]] * 3
    with deadline(SHORT):
        assert isinstance(loops.wait.call("second").exception(), DeadlineExceeded)
    assert loops.endings.call().get().values() == [["second cancelled", "second finally"]] * 3


def test_concurrent_endpoint_is_cancelled(loops):
    with deadline(SHORT):
        future = loops.beside.call()
    assert loops.endings.call().get().values() == [[]] * 3
    error = future.exception()
    assert isinstance(error, DeadlineExceeded) and " in waits" in str(error)
    eventually("the cancelled endpoints", lambda: loops.endings.call().get().values(), lambda all: all == [["beside"]] * 3)


def test_cancelled_broadcast_fails_no_actor(loops):
    with deadline(SHORT):
        loops.wait.broadcast("alone")
    expected = [["alone cancelled", "alone finally"]] * 3
    eventually("the cancelled endpoints", lambda: loops.endings.call().get().values(), lambda all: all == expected)


def test_tasks_and_threads_inherit_the_deadline(loops):
    with deadline(LONG):
        all_left = loops.task_left.call().get().values()
    assert all(0 < left <= LONG for one in all_left for left in one)
    assert loops.task_left.call().get().values() == [[None] * 3] * 3


def test_sync_endpoint_is_overdue(workers):
    with deadline(SHORT):
        future = workers.train.call(2)
    assert isinstance(future.exception(), DeadlineExceeded)
    overdue = [actor["overdue"] for actor in states(workers)]
    assert len(overdue) == 3 and all(seconds > 0 for seconds in overdue)
    assert workers.rank.call().get().values() == [0, 1, 2]
    assert [actor["overdue"] for actor in states(workers)] == [None] * 3


def test_endpoint_has_its_own_timeout(workers):
    first = workers.slice(gpus=0)
    assert 0 < first.limited.call_one(0).get() <= 0.3
    assert isinstance(first.limited.call_one(1).exception(), DeadlineExceeded)
    first.rank.call_one().get()
    with deadline(LONG):
        assert first.limited.call_one(0).get() <= 0.3
        with deadline(None):
            assert isinstance(first.limited.call_one(1).exception(), DeadlineExceeded)
    first.rank.call_one().get()
    with deadline(0.1):
        future = first.limited.call_one(0)
    assert future.get() <= 0.1


# ---- what endpoints do on behalf of the call


def test_nested_calls_expire_three_processes_deep(workers):
    one, two, three = (workers.slice(gpus=i) for i in range(3))
    with deadline(LONG):
        assert 0 < one.nested.call_one([two, three], 0).get() <= LONG
    with deadline(SHORT):
        error = one.nested.call_one([two, three], 1.5).exception()
    assert isinstance(error, DeadlineExceeded)
    # The same deadline may have ended the endpoint, which sends its error.
    place = r"(deadline_actors.py:\d+ in nested|nested, which keeps the GIL or has ended meanwhile)"
    assert re.search(rf"^  rank 0: running since [\d.]+ s: {place}$", str(error), re.MULTILINE)
    # All of them are free when the innermost endpoint has returned.
    assert workers.rank.call().get().values() == [0, 1, 2]


def test_shield_holds_in_an_endpoint(workers):
    with deadline(LONG):
        assert workers.slice(gpus=0).shielded.call_one(workers.slice(gpus=1)).get() is None


def test_spawn_of_an_endpoint_inherits_the_deadline(workers):
    with deadline(LONG):
        left = workers.slice(gpus=0).spawns.call_one().get()
    assert 0 < left <= LONG


# ---- spawns and stops


def test_actor_that_is_made_late_can_be_used(procs):
    with deadline(SHORT):
        slow = procs.spawn("slow", Slow, 1.0, 0)
        error = slow.left.call().exception()
    assert isinstance(error, DeadlineExceeded) and "queued behind __init__ since" in str(error)
    assert [made for made, _ in slow.left.call().get().values()] == [0] * 3
    slow.stop().get()


def test_spawn_after_the_deadline_is_refused(procs):
    for argument in (0, per_rank([0, 0, 0])):
        with deadline(0), pytest.raises(DeadlineExceeded, match="not sent: the deadline had passed") as caught:
            procs.spawn("never", Slow, argument, 0)
        assert str(caught.value).startswith("never.__init__(): 0 of 3 ranks have answered at the deadline")
    with deadline(LONG):
        made = procs.spawn("made", Slow, 0, 0)
        made.left.call().get()
    made.stop().get()


def test_stop_goes_on_after_its_deadline(procs):
    port, receiver = Channel[float | None].open()
    slow = procs.spawn("slow", Slow, 0, 1.0, port)
    slow.left.call().get()
    with deadline(SHORT):
        future = slow.stop()
    error = future.exception()
    assert isinstance(error, DeadlineExceeded) and error.missing == [0, 1, 2]
    assert str(error).startswith("slow.stop(): 0 of 3 ranks have answered") and " in __cleanup__" in str(error)
    assert all(0 < receiver.recv().get(LONG) <= SHORT for _ in range(3))
    assert slow.stop().get() is None


def test_start_of_procs_expires():
    with deadline(SHORT):
        mesh = this_host().spawn_procs({"gpus": 2}, bootstrap=lambda: time.sleep(1.5))  # sleeps: the start exceeds its deadline
        error = mesh.initialized.exception()
    assert isinstance(error, DeadlineExceeded) and error.missing == [0, 1]
    assert mesh.initialized.get() is True
    mesh.stop().get()


# ---- failures at the deadline


def test_stopped_process_is_named():
    with this_host().spawn_procs({"gpus": 2}) as procs:
        workers = procs.spawn("workers", Sync)
        pids = workers.pid.call().get().values()
        stop(pids[1])
        with deadline(SHORT):
            error = workers.rank.call().exception()
        os.kill(pids[1], signal.SIGCONT)
        assert isinstance(error, DeadlineExceeded) and error.values.ranks == [0]
        assert f"rank 1: its process (pid {pids[1]}) does not run: it is stopped by a signal" in str(error)
        assert workers.rank.call().get().values() == [0, 1]


def test_proc_killed_at_the_deadline_fails_the_call():
    script = """
    import os, signal, threading
    from deadline_actors import Sync
    import monarch.actor
    from monarch.actor import DeadlineExceeded, SupervisionError, deadline, this_host

    monarch.actor.unhandled_fault_hook = lambda failure: None
    with this_host().spawn_procs({"gpus": 2}) as procs:
        workers = procs.spawn("workers", Sync)
        pids = workers.pid.call().get().values()
        with deadline(0.3):
            future = workers.train.call(60)
        timer = threading.Timer(0.3, os.kill, (pids[1], signal.SIGKILL))
        timer.start()
        error = future.exception(30)
        timer.join()
        assert isinstance(error, DeadlineExceeded | SupervisionError), error
        assert isinstance(workers.slice(gpus=1).rank.call_one().exception(30), SupervisionError)
        os.kill(pids[0], signal.SIGKILL)
    """
    run(script)


def test_stopped_client_counts_answers_in_time():
    script = """
    import os, signal, subprocess
    from deadline_actors import Sync
    from monarch.actor import DeadlineExceeded, deadline, this_host

    with this_host().spawn_procs({"gpus": 2}) as procs:
        workers = procs.spawn("workers", Sync)
        workers.rank.call().get()
        with deadline(0.5):
            future = workers.train.call(0.2)
            late = workers.train.call(2)
        helper = subprocess.Popen(["sh", "-c", f"sleep 1; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)
        assert future.get(30).values() == [0, 1], "both answers came before the deadline"
        assert isinstance(late.exception(30), DeadlineExceeded)
        assert workers.rank.call().get().values() == [0, 1]
        helper.wait()
    """
    run(script)


def test_thousand_calls_expire_together(workers):
    before = in_flight()
    running = workers.train.call(1)
    with deadline(SHORT):
        futures = [workers.rank.call() for _ in range(1000)]
    errors = [future.exception() for future in futures]
    assert {type(error) for error in errors} == {DeadlineExceeded}
    assert {line.partition(" since ")[0] for error in errors for line in str(error).split("\n")[1:2]} == {
        "  ranks 0-2: queued behind train"
    }
    running.get()
    del errors, futures
    assert workers.rank.call().get().values() == [0, 1, 2]
    assert in_flight() <= before


# ---- several hosts


def test_hosts_report_the_states_of_their_ranks():
    with local_hosts(3) as hosts:
        workers = hosts.spawn_procs({"gpus": 2}).spawn("workers", Sync)
        assert workers.rank.call().get().values() == list(range(6))
        with deadline(LONG):
            assert all(0 < left <= LONG for left in workers.left.call().get().values())
        with deadline(1.0):
            error = workers.train.call(4, 1, 4).exception()
        assert isinstance(error, DeadlineExceeded)
        assert (error.missing, error.values.values()) == ([1, 4], [0, 2, 3, 5])
        first, state, _ = str(error).split("\n")
        assert first == "workers.train(): 4 of 6 ranks have answered at the deadline"
        assert state.startswith("  ranks 1, 4: running since ") and state.endswith(" in train")
        assert workers.rank.call().get().values() == list(range(6))
        first = workers.slice(hosts=0, gpus=0)
        with deadline(1.0):
            error = first.nested.call_one([workers.slice(hosts=1, gpus=0), workers.slice(hosts=2, gpus=1)], 3).exception()
        assert isinstance(error, DeadlineExceeded)


def test_silent_host_is_named():
    with local_hosts(2) as hosts:
        workers = hosts.spawn_procs().spawn("workers", Sync)
        workers.rank.call().get()
        agent = workers.slice(hosts=1).parent.call_one().get()
        pid = workers.slice(hosts=1).pid.call_one().get()
        for one in (agent, pid):
            stop(one)
        try:
            with deadline(1.5):
                error = workers.rank.call().exception()
        finally:
            for one in (agent, pid):
                os.kill(one, signal.SIGCONT)
        assert isinstance(error, DeadlineExceeded) and error.values.ranks == [0]
        assert "rank 1: host " in str(error) and "no heartbeat for " in str(error)


def test_port_message_has_no_deadline(workers):
    port, receiver = Channel[str].open()
    with deadline(LONG):
        workers.slice(gpus=0).note.call_one(port).get()
    assert isinstance(port, Port)
    port.send("after")
    assert receiver.recv().get(LONG) == "after"
