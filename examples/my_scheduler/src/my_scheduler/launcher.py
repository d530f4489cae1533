"""The first way: a launcher. It operates the scheduler; Monarch does joining, re-attaching, healing and credentials."""

from __future__ import annotations

from typing import Any

from monarch.job import HostStatus, JobStatus, Plan
from my_scheduler.slots import Slots
from my_scheduler.worker import address_of, start_worker


class QueueLauncher:
    """A launcher, made from the arguments of `job_of_kind("my-queue", meshes={...}, folder=..., slots=...)`.

    `ids` has the task of each host: `{"tasks": {mesh: [task, ...]}}`.
    """

    kind = "my-queue"

    def __init__(self, arguments: dict[str, Any]) -> None:
        self._meshes: dict[str, int] = arguments["meshes"]
        self._slots = Slots(arguments.get("folder", "~/.my_scheduler"), arguments.get("slots", 4))

    def plan(self) -> Plan:
        hosts = [f"{mesh}[{rank}]: monarch worker\n" for mesh, size in self._meshes.items() for rank in range(size)]
        return Plan(self.kind, f"# at most {self._slots.slots} at once, in {self._slots.folder}\n" + "".join(hosts))

    def submit(self, plan: Plan, secret: bytes) -> dict[str, Any]:
        ids: dict[str, Any] = {"tasks": {mesh: [] for mesh in self._meshes}}
        try:
            for mesh, size in self._meshes.items():
                for _ in range(size):
                    # The task is recorded before it is started: an interrupt in between would lose it.
                    task = self._slots.new()
                    ids["tasks"][mesh].append(task)
                    start_worker(self._slots, secret, task)
        except BaseException:
            self.cancel(ids)
            raise
        return ids

    def poll(self, ids: dict[str, Any]) -> JobStatus:
        hosts: list[HostStatus] = []
        waiting = 0
        for mesh, tasks in ids["tasks"].items():
            for rank, task in enumerate(tasks):
                state = self._slots.state(task)
                waiting += state == "waiting"
                if state in ("waiting", "running"):
                    hosts.append(HostStatus(mesh, rank, f"task {task}", "waiting", None, ""))
                else:
                    hosts.append(HostStatus(mesh, rank, f"task {task}", "lost", None, f"{state}\n{self._slots.tail(task)}".rstrip()))
        if all(host.phase == "lost" for host in hosts):
            return JobStatus("ended", "all tasks have ended", hosts)
        if waiting:
            return JobStatus("pending", f"{waiting} of {len(hosts)} tasks wait for a slot", hosts)
        return JobStatus("running", "", hosts)

    def addresses(self, ids: dict[str, Any]) -> dict[str, list[str | None]]:
        return {mesh: [address_of(self._slots, task) for task in tasks] for mesh, tasks in ids["tasks"].items()}

    def relaunch(self, ids: dict[str, Any], lost: list[tuple[str, int]]) -> list[tuple[str, int]]:
        for mesh, rank in lost:
            old, new = ids["tasks"][mesh][rank], self._slots.new()
            # Only the tasks have the secret of the job.
            with open(f"{self._slots.place(old)}/secret", "rb") as f:
                secret = f.read()
            ids["tasks"][mesh][rank] = new
            self._slots.cancel(old)
            start_worker(self._slots, secret, new)
        return lost

    def cancel(self, ids: dict[str, Any]) -> None:
        for tasks in ids["tasks"].values():
            for task in tasks:
                self._slots.cancel(task)
