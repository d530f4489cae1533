"""A rank of a mesh: the pod that the handles of clients are for, and the pods that have the rank now.

The record of a place is part of the ids of an allocation: `worker` (that clients were given, None while there is none), `name` of its pod,
`address`, `fault_since` (Unix time, None without a fault), and `last` (what was wrong with the pod in the last look that has seen it; ""
without a fault). Its keys never change, as another thread may write the state file.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from monarch.job._job.launcher import Host, HostStatus
from monarch.job.kubernetes.pods.diagnosis import Fault, crash_loop, ended_words, fault
from monarch.job.kubernetes.pods.pod_view import PodView, current

Record = dict[str, Any]


def new_record() -> Record:
    """Of a place that no pod has had."""
    return {"worker": None, "name": "", "address": None, "fault_since": None, "last": ""}


class Place:
    """`pods` are those of this rank that the API server has now; `port` is where their workers listen."""

    def __init__(self, host: Host, record: Record, pods: Iterable[PodView], port: int) -> None:
        self.host = host
        self.record = record
        self.pods = list(pods)
        self.port = port
        self.latest = current(self.pods)
        given: str | None = record["worker"]
        # The pod of the worker that clients know, if it still exists.
        self.own = None if given is None else next((pod for pod in self.pods if pod.uid == given.partition("/")[0]), None)

    @property
    def is_given(self) -> bool:
        """Have clients been given a pod of this rank?"""
        return self.record["worker"] is not None

    @property
    def loss(self) -> str | None:
        """Why the pod that clients were given is lost; None where it is not, or where there is none."""
        if not self.is_given:
            return None
        if self.own is None:
            # A pod that is evicted is there for seconds only.
            last = self.record.get("last")
            words = f"{last}; the pod is gone" if last else f"pod {self.record['name']} is gone"
        elif self.own.is_over or self.own.is_unreachable:
            found = fault(self.own)
            words = f"pod {self.own.name} has ended with exit code 0" if found is None else found.text
        elif self.own.worker != self.record["worker"]:
            return restarted(self.own)
        else:
            return None
        if self.successor is not None:
            words += f"; pod {self.successor.name} takes its place"
        return words

    @property
    def own_fault(self) -> Fault | None:
        """What was wrong with the pod that clients were given."""
        return None if self.own is None else fault(self.own)

    @property
    def successor(self) -> PodView | None:
        """Another pod than the one that clients were given, which lives."""
        latest = self.latest
        return latest if latest is not None and latest is not self.own and not latest.is_over else None

    @property
    def fault(self) -> Fault | None:
        """Why there is no worker to give to clients; None where there is one, or where it is on its way."""
        if self.is_given and self.loss is None:
            return None
        latest = self.latest
        if latest is not None and latest.is_ready and not latest.is_over:
            return None
        found = None if latest is None else fault(latest)
        if found is not None and found.is_lasting:
            return found
        return crash_loop(pod for pod in self.pods if pod.phase == "Failed") or found

    def settle(self) -> str | None:
        """The address of the worker, None while there is none. The first pod that is ready is the one that clients are given."""
        latest = self.latest
        if not self.is_given and latest is not None and latest.is_ready and not latest.is_over and latest.ip:
            self.record.update({"worker": latest.worker, "name": latest.name, "address": latest.address(self.port), "fault_since": None})
            self._note("")
            self.own = latest
        return self.record["address"] if self.is_given and self.loss is None else None

    def reopen(self) -> None:
        """The next pod of this rank that is ready is the one that clients are given."""
        self.record.update({"worker": None, "address": None, "fault_since": None})
        self._note("")

    def note(self) -> None:
        """Keeps what is wrong with the pod that clients were given, which may be gone in the next look."""
        if self.own is not None:
            found = self.own_fault
            self._note("" if found is None else found.text)

    def _note(self, text: str) -> None:
        # A state file of an earlier release has records without this key.
        if "last" in self.record:
            self.record["last"] = text

    @property
    def is_starting(self) -> bool:
        """Does no container of a pod of this rank run yet?"""
        return (not self.is_given or self.loss is not None) and (self.latest is None or self.latest.is_over or not self.latest.is_running)

    def status(self, waiting: str) -> HostStatus:
        """`waiting` is the reason for which there is no pod, where there is none."""
        loss = self.loss
        address: str | None = self.record["address"]
        if loss is not None:
            return HostStatus(self.host.mesh, self.host.rank, self.record["name"], "lost", None, loss)
        if self.is_given:
            return HostStatus(self.host.mesh, self.host.rank, self.record["name"], "waiting", address, "")
        latest = self.latest
        if latest is None:
            return HostStatus(self.host.mesh, self.host.rank, self.record["name"], "waiting", None, waiting)
        found = self.fault
        detail = progress(latest) if found is None else found.text
        return HostStatus(self.host.mesh, self.host.rank, latest.name, "waiting", None, detail)


def restarted(pod: PodView) -> str:
    """Of a pod whose container was started again."""
    found = pod.main
    if found is None or not found.restarts:
        return f"pod {pod.name} was started again"
    ended = ended_words(found.last_reason, found.last_exit_code)
    return f"pod {pod.name}, container {found.name}, was started again{f' after {ended}' if ended else ''}"


def progress(pod: PodView) -> str:
    """How far a pod without a fault is; "" for one that is ready."""
    where = f" on {pod.node}" if pod.node else ""
    if pod.is_ready:
        return ""
    if pod.is_running:
        return f"pod {pod.name}{where} runs, its worker does not listen yet"
    waiting = next((c for c in pod.containers if c.state == "waiting" and c.reason), None)
    if waiting is not None:
        return f"pod {pod.name}{where}: {': '.join(filter(None, (waiting.reason, waiting.message)))}"
    return f"pod {pod.name}{where} is {pod.phase}"
