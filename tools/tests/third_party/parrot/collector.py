"""A collector of events of which each host has one: a service that observes the processes of a job on its host, dead ones too."""

from __future__ import annotations

import os
from threading import Lock

from monarch.actor import Actor, endpoint
from monarch.extension import JobId, Service
from monarch.extension.events import Batch, observe
from monarch.extension.inspection import host_stacks, host_state


class Collector(Actor):
    """Counts words by the process that emitted them; takes columns, and makes no object per event."""

    def __init__(self, job: int) -> None:
        self.lock = Lock()
        self.words: dict[str, set[int]] = {}
        self.ended: set[int] = set()
        self.observation = observe(self.take, every=0.01, job=JobId(job))

    def take(self, batch: Batch) -> None:
        """Runs on the thread of the observation."""
        spoken = batch.columns.get("user.event")
        with self.lock:
            for number in set(() if spoken is None else spoken["name"]) - {-1}:
                self.words.setdefault(batch.texts[number], set()).add(batch.pid)
            if batch.ended:
                self.ended.add(batch.pid)

    @endpoint
    def who(self, word: str) -> set[int]:
        with self.lock:
            return set(self.words.get(word, ()))

    @endpoint
    def dead(self) -> set[int]:
        with self.lock:
            return set(self.ended)

    @endpoint
    def now(self) -> list[int]:
        """The processes of this host, after a read of their events."""
        assert self.observation.look()
        assert host_stacks()["procs"]
        return [proc["pid"] for proc in host_state()["procs"]]

    @endpoint
    def leave(self) -> None:
        os._exit(9)


collector = Service(Collector)
