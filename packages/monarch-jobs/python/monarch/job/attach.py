"""Hosts that were started by other means: addresses and credentials."""

from __future__ import annotations

import os
import time
from typing import Any

from monarch import actor
from monarch.job._files.credentials import read_private
from monarch.job._job.host_end import leave
from monarch.job._job.job_state import JobState
from monarch.job._job.launcher import HealReport, HostStatus, JobStatus, Plan
from monarch.job._job.trait import JobTrait
from monarch.job.errors import JobError
from monarch.job.login import check_meshes


class AttachJob(JobTrait):
    """`meshes` has the addresses per mesh; `credentials` is the 0600 file with the secret that the workers were started with.

    `kill` ends what was spawned through the job's meshes, and leaves the hosts running. Without `credentials`, `MONARCH_JOB_SECRET_FILE`
    names the file. Lost workers are started again, at the same addresses, by the means that started them; `heal` then attaches to them.
    """

    __module__ = "monarch.job"
    kind = "attach"
    connection_: JobState | None = None
    # Handles from before lost hosts were attached again: processes spawned through them end with the job too.
    earlier_: tuple[JobState, ...] = ()

    def __init__(self, meshes: dict[str, list[str]], *, credentials: str | None = None) -> None:
        super().__init__()
        self._meshes = check_meshes(meshes)
        for addresses in self._meshes.values():
            for address in addresses:
                actor.ChannelAddr(address)
        self._credentials = None if credentials is None else os.path.abspath(os.path.expanduser(credentials))

    def plan(self) -> Plan:
        return Plan(self.kind, "".join(f"{name}[{i}]: {host}\n" for name, hosts in self._meshes.items() for i, host in enumerate(hosts)))

    def can_run(self, spec: JobTrait) -> bool:
        return isinstance(spec, AttachJob) and (spec._meshes, spec._credentials) == (self._meshes, self._credentials)

    def _create(self, client_script: str | None) -> None:
        if client_script is not None:
            raise JobError("attach jobs run no client script", title=self._title)
        self._secret()

    def _secret(self) -> bytes | str | None:
        if self._credentials is not None and os.path.islink(self._credentials):
            return self._credentials  # like a Secret volume of Kubernetes: the permissions are checked where the file is read
        return None if self._credentials is None else read_private(self._credentials)

    def _state(self) -> JobState:
        if self.connection_ is None:
            secret = self._secret()
            meshes = {name: actor.attach_to_workers(workers=list(hosts), name=name, secret=secret) for name, hosts in self._meshes.items()}
            self.connection_ = JobState(meshes)
        return self.connection_

    def _poll(self) -> JobStatus:
        hosts = [HostStatus(name, i, "", "waiting", host, "") for name, hosts in self._meshes.items() for i, host in enumerate(hosts)]
        return JobStatus("running", "started by somebody else", hosts)

    def _heal(self, timeout: float | None) -> HealReport:
        """Finds the hosts that answer; nothing can be started from here."""
        secret = self._secret()
        deadline = None if timeout is None else time.monotonic() + timeout
        # Each host has an attachment of its own, so that each has its own result; the next `state()` has all that answer.
        joining = [(host, actor.attach_to_workers(workers=[host.address], secret=secret).initialized) for host in self._poll().hosts]
        if self.connection_ is not None:
            self.earlier_ += (self.connection_,)
            self.connection_ = None
        missing: list[HostStatus] = []
        for host, joined in joining:
            try:
                joined.get(None if deadline is None else max(deadline - time.monotonic(), 0))
            except actor.AttachError as e:
                missing.append(host._replace(phase="lost", detail="; ".join(e.hosts.values())))
            except TimeoutError:
                missing.append(host._replace(phase="lost", detail=f"no answer within {timeout:g} s"))
        return HealReport([], [], missing)

    def _kill(self) -> None:
        connection, self.connection_ = self.connection_, None
        earlier, self.earlier_ = self.earlier_, ()
        leave(state[mesh] for state in (*earlier, connection) if state is not None for mesh in state)

    def _sizes(self) -> dict[str, int]:
        return {name: len(hosts) for name, hosts in self._meshes.items()}

    def _dump(self) -> dict[str, Any]:
        return {"arguments": {"meshes": self._meshes, "credentials": self._credentials}}

    def _load(self, saved: dict[str, Any]) -> None:
        arguments = saved["arguments"]
        AttachJob.__init__(self, arguments["meshes"], credentials=arguments["credentials"])
