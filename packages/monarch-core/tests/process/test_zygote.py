"""The zygote: its death, and the deaths of procs during their start."""

from __future__ import annotations

from fresh_script import run

CODE = """
import select
import monarch.actor
from monarch.actor import SupervisionError
from monarch.actor.testing import assert_clean, fault
from monarch._core.process.current import current_process
monarch.actor.unhandled_fault_hook = lambda failure: None
"""


def test_zygote_exit_ends_procs_until_the_next_spawn():
    done = run(
        CODE
        + """
procs = this_host().spawn_procs({"procs": 3})
mesh = procs.spawn("echo", Echo)
assert mesh.echo.call(1).get().values() == [1, 1, 1]
zygote = current_process().native.zygote_pid()
ends = [os.pidfd_open(pid) for _, pid in current_process().native.alive_procs()]
os.kill(zygote, signal.SIGKILL)
# One that is still to be killed by the kernel may still answer.
for end in ends:
    select.select([end], [], [])
    os.close(end)
for rank in range(3):
    try:
        mesh.slice(procs=rank).echo.call(2).get()
        say("no error")
    except SupervisionError as e:
        assert "Killed(sig=9)" in str(e), e
procs.stop().get()
with this_host().spawn_procs() as others:
    assert others.spawn("echo", Echo).echo.call_one(3).get() == 3
assert current_process().native.zygote_pid() != zygote
# Its corpse has been buried too.
assert_clean()
say("done")
"""
    )
    done.assert_clean()
    assert done.out == "done\n"


def test_ends_are_noticed_while_it_is_stopped():
    done = run(
        CODE
        + """
class Leaver(Actor):
    @endpoint
    def leave(self, code):
        os._exit(code)

mesh = this_host().spawn_procs({"procs": 2}).spawn("leaver", Leaver)
kept = this_host().spawn_procs(name="kept").spawn("echo", Echo)
assert kept.echo.call_one(1).get() == 1
mesh.initialized.get()
os.kill(current_process().native.zygote_pid(), signal.SIGSTOP)
for rank, (code, text) in enumerate([(7, "exited with non-zero code 7"), (0, "exited")]):
    try:
        mesh.slice(procs=rank).leave.call_one(code).get()
    except SupervisionError as e:
        assert text in str(e), e
assert kept.echo.call_one(2).get() == 2
# The exit of the client does not wait for it either.
say("done")
"""
    )
    done.assert_clean()
    assert done.out == "done\n"


def test_procs_that_are_killed_at_birth():
    done = run(
        CODE
        + """
zygote = None
for _ in range(20):
    procs = this_host().spawn_procs({"procs": 2})
    fault(procs, "kill")
    try:
        procs.initialized.get()
    except SupervisionError:
        pass
    procs.stop().get()
    zygote = zygote or current_process().native.zygote_pid()
assert current_process().native.zygote_pid() == zygote
say("done")
"""
    )
    done.assert_clean()
    assert done.out == "done\n"


def test_many_procs_share_the_imports_of_most():
    done = run(
        CODE
        + """
import sys

class Importer(Actor):
    @endpoint
    def has(self, names):
        return [name in sys.modules for name in names]

mesh = this_host().spawn_procs({"procs": 24}).spawn("importer", Importer)
names = ["asyncio", "monarch._core.actor.async_actor", "monarch._core.observe.waits"]
assert mesh.has.call(names).get().values()[-1] == [True, True, True]
say("done")
"""
    )
    done.assert_clean()
    assert done.out == "done\n"
