"""Lost wake-ups of actors: the runtime finds a thread that sleeps although its queue has a message, and wakes it."""

from __future__ import annotations

import pytest
from fresh import lines, run
from recorded_actors import ACTORS, recorder

LOSING = (
    ACTORS
    + """
import asyncio, select
from eventually import eventually
from monarch._core.process.current import current_process
from monarch.actor import Channel

class Losing(Actor):
    @endpoint
    async def lose(self, how, port):
        (side,) = [actor.loop_side for actor in current_process().actors.values() if actor.instance is self]
        def begin():
            if side.waker is None:  # it does not wait for messages yet
                side.loop.call_soon(begin)
                return
            # As if other code had closed a descriptor that is not its own, and opened another one.
            if how == "descriptor":
                made, lost = os.eventfd(0, os.EFD_NONBLOCK), side.fd
            else:
                self.kept = select.epoll()
                made, lost = self.kept.fileno(), side.loop._selector.fileno()
            os.dup2(made, lost)
            port.send("lost")
        begin()

    @endpoint
    async def answer(self):
        return 1

def lost(where, how):
    losing = where.spawn("losing", Losing)
    port, receiver = Channel.open()
    losing.lose.call_one(how, port).get()
    assert receiver.recv().get(timeout=20) == "lost"
    def answered():
        assert losing.answer.call_one().get(timeout=20) == 1
        return [fields for r in events.recordings() for fields in of(r.reader().read(), "wakeup.lost")]
    # A message that comes before the loop sleeps is handled at once.
    found = eventually("a message came while the loop slept", answered)
    assert {fields["mesh"] for fields in found} == {losing.__core__.info.uid}, found
    print([(fields["lost_at"], fields["messages"]) for fields in found])
    sys.stdout.flush()
    os._exit(0)
"""
)


@pytest.mark.parametrize("where", ["this_proc()", "this_host().spawn_procs()"])
def test_message_before_a_sleeping_loop_is_handled(where: str) -> None:
    done = run(LOSING + f"lost({where}, 'descriptor')", env=recorder(256))
    assert lines(done.stdout) == ["[('descriptor', 1)]"]


def test_loop_outside_the_set_enters_it_again() -> None:
    done = run(LOSING + "lost(this_proc(), 'set')", env=recorder(256))
    assert lines(done.stdout)[0].startswith("[('set', 0)")
