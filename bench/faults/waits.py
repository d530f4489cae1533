"""Programs whose actors wait for each other, for themselves, or for locks."""

from __future__ import annotations

from typing import Any

from bench.faults.actors import AsyncPartner, Cache, Partner, Store, Uploader
from bench.faults.program import Fault, rest
from monarch.actor import Channel, this_host


def _circle(kind: Any, names: tuple[str, ...]) -> None:
    """Each actor calls the next one, when all of them are in an endpoint."""
    procs = this_host().spawn_procs({"procs": len(names)}, name="procs")
    actors = [procs.slice(procs=index).spawn(name, kind) for index, name in enumerate(names)]
    for index, actor in enumerate(actors):
        actor.meet.call_one(actors[(index + 1) % len(actors)]).get()
    begun, gates = Channel[Any].open()
    calls = [actor.exchange.call_one(begun) for actor in actors]
    for gate in [gates.recv().get() for _ in actors]:
        gate.send(None)
    rest(calls[0])


def deadlock_of_two() -> None:
    _circle(Partner, ("trainer", "loader"))


def deadlock_of_three() -> None:
    _circle(AsyncPartner, ("trainer", "loader", "cache"))


def own_actor() -> None:
    _circle(AsyncPartner, ("planner",))


def lock_and_calls() -> None:
    procs = this_host().spawn_procs({"procs": 2}, name="procs")
    cache, store = procs.slice(procs=0).spawn("cache", Cache), procs.slice(procs=1).spawn("store", Store)
    store.meet.call_one(cache).get()
    cache.begin.call_one(store).get()
    rest(cache.step.call_one())


def lock() -> None:
    uploaders = this_host().spawn_procs({"gpus": 3}, name="procs").spawn("uploader", Uploader)
    uploaders.begin.call(1).get()
    call = uploaders.step.call()
    rest(call)


FAULTS = (
    Fault("deadlock_of_two", deadlock_of_two, r"(trainer|loader) .*waits .*for (loader|trainer).*: a cycle of 2", 1.0),
    Fault("deadlock_of_three", deadlock_of_three, r"(trainer|loader|cache) .*waits .*: a cycle of 3", 1.0),
    Fault("own_actor", own_actor, r"planner .*waits .*its own endpoint answer\(\)", 1.0),
    Fault("lock_and_calls", lock_and_calls, r"(cache|store|thread refresh of procs rank 0) .*waits .*: a cycle of 3", 1.0),
    Fault("lock", lock, r"thread upload of procs rank 1 .*holds a lock in actors\.py:\d+ in _upload for which uploader rank 1 waits", 6.0),
)
