"""Hosts that join a client's job: the request, and its outcome."""

from __future__ import annotations

import json
import time
from contextvars import ContextVar

from monarch._core._native import Hosts
from monarch._core._native.protocol import ERROR, GATHER, OK
from monarch._core.call.future import Future, new_future
from monarch._core.call.runs import each_of
from monarch._core.config import config
from monarch._core.config.address import ChannelAddr
from monarch._core.errors.errors import AttachError, AuthenticationError, MonarchError, VersionMismatch
from monarch._core.errors.text import attach_failed
from monarch._core.hosts.connections import native_hosts
from monarch._core.hosts.trust import Given, Trust
from monarch._core.process import runtime_log
from monarch._core.process.identity import new_uid
from monarch._core.process.loaded import loaded_module
from monarch._core.process.process import LocalProcess

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from monarch._core._native import PendingCall
    from monarch._core.process.parts import Attached


# The time by which hosts have to join, in monotonic seconds, if it is before the end of `mesh_attach_config_timeout`.
JOIN_DEADLINE: ContextVar[float | None] = ContextVar("JOIN_DEADLINE", default=None)
# Seconds: the least time to join for an address that becomes known late.
_LEAST_S = 1.0


def where(address: ChannelAddr) -> tuple[str, str, int]:
    """An address in the form for native code."""
    address.require_supported()
    if address.scheme == "unix":
        return ("unix", address.path or "", 0)
    if address.scheme == "local":
        # An abstract name in the kernel's namespace, which other processes of the user can dial too.
        return ("unix", f"@monarch-inproc-{address.number}", 0)
    if address.fd is not None:
        return ("fd", "", address.fd)
    return ("tcp", address.host or "", address.get_port())


class Attachment:
    """The hosts of one call of `attach_to_workers`."""

    def __init__(self, process: LocalProcess, workers: Sequence[Any], given: Given, name: str | None = None) -> None:
        self.process = process
        self.given = given
        known_addresses = [_known_address(w) for w in workers]
        # Ranks whose address is unknown; in texts the rank in the mesh replaces the address.
        self.unknown = {rank for rank, address in enumerate(known_addresses) if address is None}
        self.addresses = [address or f"{name or 'workers'}[{rank}]" for rank, address in enumerate(known_addresses)]
        known = _joined_hosts(process)
        taken: set[int] = set()
        # Ranks of hosts that this client has attached before: such a host keeps its identity.
        self._again: dict[int, tuple[Attached, int]] = {}
        # The rank of the worker that this process is itself: its host is this one.
        self._own: int | None = None
        ids: list[int] = []
        for rank, address in enumerate(known_addresses):
            if address is not None and self._own is None and _is_own(address):
                self._own = rank
                ids.append(process.agent_uid)
                continue
            before = known.get(address) if address is not None else None
            if (
                before is not None
                and address is not None
                and before[0].ids[before[1]] not in taken
                and given.is_as(before[0].given, address)
            ):
                self._again[rank] = before
                ids.append(before[0].ids[before[1]])
            else:
                ids.append(new_uid())
            taken.add(ids[-1])
        self.ids = tuple(ids)
        self.cell = native_hosts(process).announce([id for rank, id in enumerate(ids) if rank != self._own], job_settings())
        if self._own is not None:
            self.cell = process.native.cell(GATHER, len(ids))
        process.hosts.attachments.append(self)
        self.failure: MonarchError | None = None
        # By rank: the error of the Future of an address, which has the cause.
        self.no_address: dict[int, MonarchError] = {}
        # Gives the reason for the loss of hosts after a failed call, or None if nothing is known beyond the loss.
        self.explain: Callable[[], MonarchError | None] | None = None
        # Gives the reason for hosts that have not joined, or None.
        self.explain_failure: Callable[[AttachError], MonarchError | None] | None = None
        self._deadline = JOIN_DEADLINE.get()
        # Whether a host has been dialled. Until then, a gateway may become the route to all hosts.
        self.has_dialled = False
        self._workers = list(workers)
        self.future: Future[None] = new_future(self.cell, self._result)

    def begin(self) -> None:
        if self.process.membership is not None:
            self.process.membership.attaching(self, {*self._again, *([] if self._own is None else [self._own])})
        self.process.execution.start_thread(self._run)

    def _run(self) -> None:
        from monarch._core._native import set_runtime_thread

        set_runtime_thread()
        if self._own is not None:
            joined = {"agent": self.process.agent_uid, "host": self.process.host, "pid": self.process.pid, "release": ""}
            self.cell.complete(self._own, OK, json.dumps(joined).encode())
        new = [(rank, worker) for rank, worker in enumerate(self._workers) if rank not in self._again and rank != self._own]
        self._join([(rank, worker) for rank, worker in new if isinstance(worker, str)])
        late = [(rank, worker) for rank, worker in new if not isinstance(worker, str)]
        while late:
            # The group includes all workers whose addresses have arrived meanwhile.
            come = [late[0], *(w for w in late[1:] if _has_come(w[1]))]
            late = [w for w in late if w not in come]
            self._join([(rank, text) for rank, worker in come if (text := self._address(rank, worker)) is not None])
        for rank, before in self._again.items():
            self._join_again(rank, *before)
        if runtime_log.wants(runtime_log.INFO):
            self._write_down()

    def _write_down(self) -> None:
        """Logs which hosts have been attached and which have not. `AttachError` names the latter."""
        while not self.cell.done():
            self.cell.wait(0, 1.0)
        for rank, (address, result) in enumerate(zip(self.addresses, self.cell.results(), strict=True)):
            if result is None or rank in self._again:
                continue
            if result.status == ERROR:
                why = Hosts.join_failure(result.raw()).why
                runtime_log.event("host.not_attached", runtime_log.WARN, True, peer=address, detail=f"{address} did not join: {why}")
            else:
                joined = json.loads(result.raw())
                detail = f"attached {joined['host']} at {address}, its agent is pid {joined['pid']}"
                runtime_log.event("host.attached", peer=address, detail=detail)

    def _address(self, rank: int, worker: Any) -> Any:
        """The result of the Future of an address; None if the Future fails."""
        try:
            text = worker.get()
            self.addresses[rank] = str(text)
            self.unknown.discard(rank)
            return text
        except MonarchError as e:  # the error has more detail than one made here
            self.failure = self.failure or e
            self.no_address[rank] = e
            self._give_up(rank, str(e).partition("\nhint: ")[0])
        except Exception as e:
            self._give_up(rank, f"its address did not come: {type(e).__name__}: {e}")
        return None

    def _join(self, workers: list[tuple[int, Any]]) -> None:
        """Makes these workers join. Many workers with the same credentials join by a join tree."""
        hosts = native_hosts(self.process)
        bound = config.seconds("mesh_attach_config_timeout") or 60.0
        if self._deadline is not None:
            bound = min(bound, max(self._deadline - time.monotonic(), _LEAST_S))
        groups: dict[tuple[object, ...], tuple[Trust, list[tuple[int, int, tuple[str, str, int], int]]]] = {}
        for rank, text in workers:
            try:
                address = ChannelAddr.parse(text)
                trust = self.given.of(address)
                one = (rank, self.ids[rank], where(address), agent_uid(address))
            except (ValueError, TypeError, OSError) as e:
                self._give_up(rank, str(e))
                continue
            groups.setdefault(trust.fields(), (trust, []))[1].append(one)
        self.has_dialled |= bool(groups)
        for trust, group in groups.values():
            try:
                hosts.join_all(self.cell, group, trust, described_by(self.process), bound)
            except (ValueError, TypeError, OSError) as e:
                for rank, _, _, _ in group:
                    self._give_up(rank, str(e))

    def _join_again(self, rank: int, before: Attached, its: int) -> None:
        while (result := before.cell.result(its)) is None:
            before.cell.wait(0, 1.0)
        self.cell.complete(rank, result.status, result.raw())

    def _give_up(self, rank: int, why: str) -> None:
        native_hosts(self.process).give_up(self.cell, rank, self.ids[rank], why)

    def _result(self, cell: PendingCall) -> None:
        if self.failure is None:
            found = failure_of(cell, self.addresses)
            if type(found) is AttachError and self.explain_failure is not None:
                self.failure = self.explain_failure(found)
            self.failure = self.failure or found
        if self.failure is not None:
            self._mark_procs_seen()
            raise self.failure

    def _mark_procs_seen(self) -> None:
        """Marks the ends of the procs on hosts that have not joined as seen: this error reports them."""
        from monarch._core.process.root_fault import proc_failure_seen

        failed = self._failed()
        for mesh in list(self.process.meshes.owned.values()):
            if not mesh.is_actors:
                for proc, agent in zip(mesh.info.procs, each_of(mesh.info.agents), strict=True):
                    if agent in failed:
                        proc_failure_seen(self.process, proc)

    def check(self, hosts: Iterable[int]) -> None:
        """Raises if one of these hosts is known not to have joined. A mesh without the failed hosts can be used."""
        if self.failure is None and self.cell.done():
            try:
                self._result(self.cell)
            except MonarchError:
                pass  # `failure` keeps the error
        if self.failure is not None and not self._failed().isdisjoint(hosts):
            raise self.failure

    def _failed(self) -> set[int]:
        return {self.ids[rank] for rank, result in enumerate(self.cell.results()) if result is not None and result.status == ERROR}

    def unreported(self) -> set[int]:
        """The hosts that have not joined while no caller has received the error. A host is lost a moment before the join has its error."""
        if self.failure is not None:
            return set()
        return {self.ids[rank] for rank, result in enumerate(self.cell.results()) if result is None or result.status == ERROR}

    def described(self) -> list[dict[str, Any] | None]:
        """The description that each host sent: `agent`, `host`, `pid`, `release`; None for hosts that have not joined."""
        results = self.cell.results()
        return [json.loads(r.raw()) if r is not None and r.status != ERROR else None for r in results]


def _known_address(worker: Any) -> str | None:
    """The address if it is known now. A Future gives its result if it is done."""
    if isinstance(worker, str):
        return worker
    done = getattr(worker, "_done", None)
    if done is not None and done():
        try:
            return str(worker.get())
        except Exception:  # `_run` reports the error with the others
            pass
    return None


def _is_own(worker: str) -> bool:
    """Whether the address is that of a worker in this process."""
    loaded = loaded_module("monarch._core.start.worker")
    return loaded is not None and loaded.is_at(worker)


def _has_come(worker: Any) -> bool:
    done = getattr(worker, "_done", None)
    return done is not None and bool(done())


def _joined_hosts(process: LocalProcess) -> dict[str, tuple[Attached, int]]:
    """The hosts that this client has attached and not lost, by their addresses."""
    if process.hosts.native is None:
        return {}
    lost = {id for id, _, _, why in process.hosts.native.hosts() if why is not None}
    process.hosts.attachments = [a for a in process.hosts.attachments if not lost.issuperset(a.ids)]
    every = [(address, a, rank) for a in process.hosts.attachments for rank, address in enumerate(a.addresses) if rank not in a.unknown]
    return {address: (a, rank) for address, a, rank in every if a.ids[rank] not in lost}


def failure_of(cell: PendingCall, addresses: Sequence[str]) -> AttachError | None:
    """The error of the hosts that have not joined, from their answers."""
    results = enumerate(cell.results())
    failures = {addresses[rank]: Hosts.join_failure(r.raw()) for rank, r in results if r is not None and r.status == ERROR}
    cell.set_retrieved()
    if not failures:
        return None
    reasons = {address: failure.why for address, failure in failures.items()}
    made: type[AttachError] = AttachError
    if any(failure.is_authentication for failure in failures.values()):
        made = AuthenticationError
    elif any(failure.is_version for failure in failures.values()):
        made = VersionMismatch
    return made(attach_failed(len(addresses), reasons), reasons)


def agent_uid(address: ChannelAddr) -> int:
    """The identity in an address; 0 if there is none. `ValueError` for one that no process can have."""
    if address.uid is None:
        return 0
    from monarch._core.process.identity import from_base58

    uid = from_base58(address.uid)
    if not 0 < uid < 1 << 64:
        raise ValueError(f"{address.url}: {address.label}<{address.uid}> is not the identity of a process")
    return uid


def described_by(process: LocalProcess) -> str:
    """The description of this client in the logs of other processes."""
    import os

    return f"{process.host} pid {process.pid} uid {os.getuid()}"


def job_settings() -> tuple[float, float, float]:
    """The settings of a new job, in seconds."""
    return (
        config.host_loss_seconds() or 3.0,
        config.seconds("channel_reconnect_timeout") or 10.0,
        config.seconds("mesh_orphan_timeout") or 0.0,
    )
