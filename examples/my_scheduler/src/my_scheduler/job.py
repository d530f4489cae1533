"""The second way: a subclass of JobTrait, which has more freedom, and has to do more by itself."""

from __future__ import annotations

import secrets
import time

from monarch.actor import attach_to_workers
from monarch.job import HostStatus, JobEndedError, JobState, JobStatus, JobTrait, JoinTimeoutError, Plan
from my_scheduler.slots import Slots
from my_scheduler.worker import address_of, start_worker

_PAUSE = 0.05


class SlotJob(JobTrait):
    """`size` hosts in the mesh `hosts`. Its attributes are saved with the job; `connection_` is not, as its name ends in `_`."""

    kind = "my-slots"
    connection_: JobState | None = None

    def __init__(self, size: int, folder: str = "~/.my_scheduler", slots: int = 4, join_timeout: float = 60) -> None:
        super().__init__()
        if size < 1:
            raise ValueError(f"a job has at least one host, not {size}")
        if size > slots:
            raise ValueError(f"{size} hosts never run at once in {slots} slots")
        self.size = size
        self.folder = folder
        self.slots = slots
        self.join_timeout = join_timeout
        self.tasks: list[str] = []

    @property
    def _queue(self) -> Slots:
        return Slots(self.folder, self.slots)

    def plan(self) -> Plan:
        return Plan(self.kind, f"{self.size} tasks: monarch worker\n")

    def can_run(self, spec: JobTrait) -> bool:
        return isinstance(spec, SlotJob) and spec.size <= self.size

    def _create(self, client_script: str | None) -> None:
        secret = secrets.token_bytes(32)
        for _ in range(self.size):
            # When this raises, `_kill` is called: it ends the tasks recorded here.
            task = self._queue.new()
            self.tasks.append(task)
            start_worker(self._queue, secret, task)

    def _state(self) -> JobState:
        if self.connection_ is None:
            workers = self._await_addresses()
            with open(f"{self._queue.place(self.tasks[0])}/secret", "rb") as f:
                self.connection_ = JobState({"hosts": attach_to_workers(workers=[*workers], name="hosts", secret=f.read())})
        return self.connection_

    def _await_addresses(self) -> list[str]:
        end = time.monotonic() + self.join_timeout
        while True:
            found = [address_of(self._queue, task) for task in self.tasks]
            listening = [address for address in found if address is not None]
            if len(listening) == self.size:
                return listening
            status = self._poll()
            if status.phase == "ended":
                raise JobEndedError("ended: all tasks have ended", title=self._title, cause=self._queue.tail(self.tasks[0]))
            if time.monotonic() > end:
                joined = len(listening)
                raise JoinTimeoutError(f"{joined} of {self.size} hosts joined", title=self._title, joined=joined, total=self.size)
            time.sleep(_PAUSE)

    def _poll(self) -> JobStatus:
        states = [self._queue.state(task) for task in self.tasks]
        alive = [state in ("waiting", "running") for state in states]
        hosts = [
            HostStatus("hosts", rank, task, "joined" if lives else "lost", address_of(self._queue, task), "" if lives else state)
            for rank, (task, state, lives) in enumerate(zip(self.tasks, states, alive, strict=True))
        ]
        return JobStatus("running" if any(alive) else "ended", "", hosts)

    def _kill(self) -> None:
        self.connection_ = None
        for task in self.tasks:
            self._queue.cancel(task)
        self.tasks = []

    def _sizes(self) -> dict[str, int]:
        return {"hosts": self.size}
