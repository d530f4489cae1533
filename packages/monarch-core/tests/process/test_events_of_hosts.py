"""Observers in processes of other hosts, whose agent's own id is unknown to its jobs."""

from __future__ import annotations

from worker_processes import Workers

from monarch.actor import Actor, endpoint
from monarch.extension import member
from monarch.extension.events import Batch, observe


class Observers(Actor):
    @endpoint
    def agents(self) -> list[tuple[bool, bool]]:
        """Whether an observer knows the agent, and whether it reads the agent's events: for all jobs, and for this one."""
        found: list[tuple[bool, bool]] = []
        for job in (None, member().job):
            observation = observe(_ignore, every=1000.0, job=job)
            assert observation.look(20.0)
            agent = observation._agent  # pyright: ignore[reportPrivateUsage]
            found.append((agent is not None, agent in observation._readers))  # pyright: ignore[reportPrivateUsage]
            assert observation.stop()
        return found


def _ignore(batch: Batch) -> None:
    pass


def test_observer_on_a_worker_finds_its_agent() -> None:
    """The agent's events are read first; it belongs to no job."""
    with Workers(1) as workers:
        procs = workers.attach().spawn_procs()
        assert procs.spawn("observers", Observers).agents.call_one().get(25) == [(True, True), (True, False)]
