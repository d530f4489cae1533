"""Which of several operators works: the one that holds a Lease, and renews it.

The time of other machines does not count: a Lease has expired when this process has seen no change of it for as long as it lasts.
A holder that cannot renew it stops before others may take it, because `RENEW_DEADLINE_S` is less than `DURATION_S`.
"""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from typing import Any

from monarch.job._machine.commands import time_limit
from monarch.job.errors import JobError
from monarch.job.kubernetes.access.client import Cluster
from monarch.job.kubernetes.access.failures import ApiError

Object = dict[str, Any]

LEASE = "coordination.k8s.io/v1/Lease"
NAME = "monarch-operator"
# The numbers of the leader election of Kubernetes' own controllers.
DURATION_S = 15.0
RENEW_DEADLINE_S = 10.0
RETRY_S = 2.0
REQUEST_S = 4.0


class Leadership:
    """`acquire`, then `keep` in a thread; `is_held` is whether this process may change anything now."""

    def __init__(self, cluster: Cluster, identity: str, log: Any) -> None:
        self._cluster = cluster
        self._identity = identity
        self._log = log
        self._renewed = float("-inf")
        self._seen: tuple[str, float] = ("", 0.0)
        self._reported = ""

    @property
    def is_held(self) -> bool:
        return time.monotonic() - self._renewed < RENEW_DEADLINE_S

    def acquire(self, stop: threading.Event) -> bool:
        """Waits for it; False where `stop` comes first."""
        while not stop.is_set():
            if self._attempt():
                return True
            stop.wait(RETRY_S)
        return False

    def keep(self, stop: threading.Event, lost: threading.Event) -> None:
        """Renews it until `stop`; sets `lost` where that does not succeed in time."""
        while not stop.wait(RETRY_S):
            self._attempt()
            if not self.is_held:
                lost.set()
                return

    def release(self) -> None:
        """Another operator may take it at once."""
        if not self.is_held:
            return
        self._renewed = float("-inf")
        try:
            with time_limit(REQUEST_S):
                lease = self._cluster.get(LEASE, NAME)
                if lease is not None and lease["spec"].get("holderIdentity") == self._identity:
                    lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
                    self._cluster.update(lease)
        except JobError as error:
            self._log.warning("the lease cannot be released: %s", error)

    def _attempt(self) -> bool:
        """One look, and the renewal or the taking where it is free."""
        start = time.monotonic()
        try:
            with time_limit(REQUEST_S):
                is_ours = self._take(start)
        except JobError as error:
            if isinstance(error, ApiError) and error.reason == "AlreadyExists":
                return False
            self._log.warning("the lease cannot be taken or renewed: %s", error)
            return False
        if is_ours:
            # The time is from before the request: the server's time of renewal is not earlier.
            self._renewed = start
        return is_ours

    def _take(self, now: float) -> bool:
        lease = self._cluster.get(LEASE, NAME)
        moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        if lease is None:
            spec = {**self._held(moment), "acquireTime": moment, "leaseTransitions": 0}
            metadata = {"name": NAME, "namespace": self._cluster.namespace}
            self._cluster.create({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec})
            return True
        spec: Object = lease["spec"]
        holder = spec.get("holderIdentity") or ""
        version = lease["metadata"]["resourceVersion"]
        if version != self._seen[0]:
            self._seen = (version, now)
        expired = now - self._seen[1] >= float(spec.get("leaseDurationSeconds") or DURATION_S)
        if holder not in ("", self._identity) and not expired:
            if holder != self._reported:
                self._reported = holder
                self._log.info("waiting: %s is the leader", holder)
            return False
        if holder != self._identity:
            spec |= {"acquireTime": moment, "leaseTransitions": int(spec.get("leaseTransitions") or 0) + 1}
        lease["spec"] = {**spec, **self._held(moment)}
        return self._cluster.update(lease) is not None

    def _held(self, moment: str) -> Object:
        return {"holderIdentity": self._identity, "leaseDurationSeconds": int(DURATION_S), "renewTime": moment}
