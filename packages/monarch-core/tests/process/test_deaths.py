"""Each part of a job on one machine that ends, hangs, or is cut off: the detection, the notice to owners, and the clean-up.

These are the rows of docs/failures/ that have no test of their own elsewhere.
"""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from dying_actors import Spawner, Worker
from eventually import eventually
from fresh_script import Script, run, wait_for_end

from monarch._core.process.current import current_process
from monarch.actor import Channel, SpawnError, SupervisionError, this_host
from monarch.config import configured
from tools.frozen import freeze

pytestmark = pytest.mark.usefixtures("fresh")


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


# ---- a proc


def test_proc_that_closes_its_link_and_lives_on(faults):
    with this_host().spawn_procs({"gpus": 2}) as mesh, this_host().spawn_procs() as others:
        worker, other = mesh.spawn("worker", Worker), others.spawn("other", Worker)
        pids = list(worker.pid.call().get().values())
        # Another process has a link to it, too.
        assert other.call.call_one(worker).get() == "fine"
        with pytest.raises(SupervisionError, match=r"failed: Killed\(sig=9\)"):
            worker.slice(gpus=0).cut_off.call_one().get()
        assert wait_for_end(pids[0])
        failure = faults.get()
        assert (failure.name, failure.crashed_ranks, failure.reason.kind) == ("worker", [0], "signal")
        assert other.call.call_one(worker).get() == "signal"
        assert worker.slice(gpus=1).pid.call_one().get() == pids[1]
    assert faults.empty()


def test_proc_that_is_frozen_is_not_dead(faults):
    with this_host().spawn_procs({"gpus": 2}) as mesh:
        worker = mesh.spawn("worker", Worker)
        pids = list(worker.pid.call().get().values())
        freeze(pids[0])
        waiting = worker.pid.call()
        assert worker.slice(gpus=1).pid.call_one().get() == pids[1] and not waiting._done()
        os.kill(pids[0], signal.SIGCONT)
        assert list(waiting.get().values()) == pids
    assert faults.empty()


def test_frozen_proc_is_killed_when_it_is_stopped():
    with configured(stop_grace_period="50ms", stop_actor_timeout="50ms", process_exit_timeout="50ms"):
        mesh = this_host().spawn_procs()
        pid = mesh.spawn("worker", Worker).pid.call_one().get()
        freeze(pid)
        mesh.stop().get()
    assert wait_for_end(pid)


# ---- the zygote


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_zygote_that_is_killed(faults, number):
    one, two = this_host().spawn_procs({"gpus": 2}, name="one"), this_host().spawn_procs(name="two")
    worker, other = one.spawn("first_of_zygote", Worker), two.spawn("second_of_zygote", Worker)
    pids = [*worker.pid.call().get().values(), other.pid.call_one().get()]
    zygote = current_process().native.zygote_pid()
    assert zygote is not None and {parent_of(pid) for pid in pids} == {zygote}
    port, receiver = Channel.open()
    held = worker.slice(gpus=0).hold.call_one(port)
    receiver.recv().get()
    os.kill(zygote, number)
    with pytest.raises(SupervisionError, match=r"failed: Killed\(sig=9\) \(pid \d+ on \S+\) SIGKILL"):
        held.get()
    # The hook is called once per mesh and rank. Procs that other tests have left end with this zygote, too.
    failures: list[Any] = []
    while len(failures) < 3:
        if (failure := faults.get()).name.endswith("_of_zygote"):
            failures.append(failure)
    assert sorted((f.name, f.crashed_ranks[0], f.reason.kind) for f in failures) == [
        ("first_of_zygote", 0, "signal"),
        ("first_of_zygote", 1, "signal"),
        ("second_of_zygote", 0, "signal"),
    ]
    assert all(wait_for_end(pid) for pid in pids)
    with pytest.raises(SpawnError):
        one.spawn("late", Worker).initialized.get()
    # The next spawn starts another zygote, and nothing of the first is left.
    with this_host().spawn_procs() as again:
        pid = again.spawn("worker", Worker).pid.call_one().get()
        assert parent_of(pid) == current_process().native.zygote_pid() != zygote
    assert not os.path.exists(f"/proc/{zygote}")
    one.stop().get()
    two.stop().get()
    assert not any(failure.name.endswith("_of_zygote") or failure.name == "late" for failure in faults.queue)


def test_zygote_that_is_frozen_starts_nothing(faults):
    # A proc that does not start in time is given up, even if no process can be asked to end it.
    done = run(
        """
        from monarch._core.process.current import current_process
        from monarch.actor import SpawnError
        from monarch.config import configure
        before = this_host().spawn_procs().spawn("echo", Echo)
        assert before.echo.call_one(1).get() == 1
        zygote = current_process().native.zygote_pid()
        os.kill(zygote, signal.SIGSTOP)
        configure(host_spawn_ready_timeout="200ms")
        procs = this_host().spawn_procs()
        try:
            procs.initialized.get()
        except SpawnError as e:
            say(str(e).splitlines()[1].split(": ")[1])
        assert before.echo.call_one(2).get() == 2
        os.kill(zygote, signal.SIGCONT)
        configure(host_spawn_ready_timeout="1m")
        assert this_host().spawn_procs().spawn("echo", Echo).echo.call_one(3).get() == 3
        """
    )
    done.assert_clean()
    assert done.out == "not ready after 0.2 s\n"


def test_exit_while_the_zygote_is_frozen():
    done = run(
        """
        from monarch._core.process.current import current_process
        from monarch.config import configure
        configure(cleanup_timeout="100ms")
        assert this_host().spawn_procs().spawn("echo", Echo).echo.call_one(1).get() == 1
        os.kill(current_process().native.zygote_pid(), signal.SIGSTOP)
        """
    )
    done.assert_clean()


# ---- the root, which is the agent of its host


def test_root_that_is_frozen():
    # Its procs wait for the root, and continue with it.
    script = Script(
        """
        class Clock(Actor):
            def __init__(self):
                self.n = 0
            @endpoint
            def tick(self):
                self.n += 1
                return self.n
        clock = this_host().spawn_procs().spawn("clock", Clock)
        clock.tick.call_one().get()
        say("ready")
        signal.sigwait({signal.SIGUSR1})
        assert clock.tick.call_one().get() == 2
        say("went on")
        """.replace(
            "        clock = this_host()", "        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})\n        clock = this_host()"
        )
    )
    script.until("ready")
    pids = [pid for pid, _ in script.processes()]
    freeze(script.process.pid)
    script.send(signal.SIGUSR1)
    assert [pid for pid, _ in script.processes()] == pids
    script.send(signal.SIGCONT)
    done = script.end()
    done.assert_clean()
    assert done.out == "ready\nwent on\n"


def test_root_that_closes_its_links():
    # Each process that has lost its agent ends itself; the root is notified of its procs' ends, and ends.
    script = Script(
        """
        import monarch.actor
        told = threading.Event()
        monarch.actor.unhandled_fault_hook = lambda failure: told.set()
        echo = this_host().spawn_procs({"gpus": 2}).spawn("echo", Echo)
        echo.echo.call(1).get()
        say("ready")
        for name in os.listdir("/proc/self/fd"):
            try:
                if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                    os.close(int(name))
            except OSError:
                pass
        say("closed")
        signal.sigwait({signal.SIGUSR1})
        """.replace("        echo = this", "        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})\n        echo = this")
    )
    script.until("ready")
    others = [pid for pid, _ in script.processes() if pid != script.process.pid]
    script.until("closed")
    assert all(wait_for_end(pid) for pid in others)
    script.send(signal.SIGKILL)
    done = script.end()
    assert done.left == [] and re.search("Traceback|panicked", done.err) is None, done.err


def test_killed_agent_fails_calls_of_external_processes():
    serve = """
        import pickle
        class Stuck(Actor):
            @endpoint
            def value(self):
                return 1
            @endpoint
            def wait(self):
                threading.Event().wait()
        stuck = this_host().spawn_procs().spawn("stuck", Stuck)
        assert stuck.value.call_one().get() == 1
        say("handle " + pickle.dumps(stuck).hex())
        threading.Event().wait()
        """
    use = """
        import pickle
        from monarch.actor import SupervisionError
        handle = pickle.loads(bytes.fromhex(os.environ["HANDLE"]))
        assert handle.value.call_one().get() == 1
        waiting = handle.wait.call_one()
        say("waiting")
        for future in (waiting, handle.value.call_one()):
            try:
                future.get()
            except SupervisionError as e:
                say(f"{e.failure.reason.kind}: {str(e).splitlines()[0].split(': ', 1)[1].split(' (')[0]}")
        """
    host = Script(serve)
    guest = Script(use, env={"HANDLE": host.until("handle ").split()[1]})
    guest.until("waiting")
    host.send(signal.SIGKILL)
    assert host.end().left == []
    done = guest.end()
    done.assert_clean()
    assert done.out == "waiting\n" + "client_lost: client of its job lost: it has ended\n" * 2


def test_procs_spawned_by_a_dying_owner_end(faults):
    native = current_process().native
    for _ in range(5):
        procs = this_host().spawn_procs(per_host={"procs": 3})
        procs.spawn("spawner", Spawner).spawn_and_die.broadcast()
        for _ in range(3):
            faults.get()
        eventually("no proc is left", native.alive_procs, lambda left: not left)
