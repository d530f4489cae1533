"""Listeners of membership: the joins and ends of other members, in the order in which this process learns of them.

Joins are those of procs that this process has spawned and of hosts that it has attached; a proc counts as joined when it answers. Ends
are those of processes that this process has spawned, watches, or has exchanged messages with, and of hosts of such processes. Without a
listener the process has no `Members` object, and each source of events tests for that.
"""

from __future__ import annotations

import json
from _thread import allocate_lock

from monarch._core._native.protocol import ERROR, PROC_ENDED, STREAM
from monarch._core.call.answer import exit_reason
from monarch._core.call.runs import each_of
from monarch._core.errors.failure import ExitReason, cause
from monarch._core.extension.frozen import Frozen
from monarch._core.extension.ids import HostId, ProcId, Rank
from monarch._core.extension.membership import proc_end
from monarch._core.extension.proc_end import ProcEnd
from monarch._core.extension.thread import extension_thread
from monarch._core.process.current import current_process
from monarch._core.process.process import PING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from monarch._core._native import PendingCall
    from monarch._core._native.system import ProcessEnd
    from monarch._core.process.mesh_info import MeshInfo
    from monarch._core.process.parts import Attached
    from monarch._core.process.process import LocalProcess

    MembershipEvent: TypeAlias = "ProcJoined | ProcEnd | HostJoined | HostEnd"
    Listener: TypeAlias = Callable[[MembershipEvent], object]


class ProcJoined(Frozen):
    """A proc that this process has spawned is ready: its `bootstrap` has run. `name` and `rank` are those in its mesh; immutable."""

    __slots__ = ("host", "name", "proc", "rank")

    proc: ProcId
    host: HostId
    name: str
    rank: Rank

    def __init__(self, proc: int, host: int, name: str, rank: int) -> None:
        self._set(proc=ProcId(proc), host=HostId(host), name=name, rank=Rank(rank))


class HostJoined(Frozen):
    """A host that this process has attached has joined the job; `pid` is that of its agent; immutable."""

    __slots__ = ("address", "host", "hostname", "pid")

    host: HostId
    hostname: str
    pid: int
    address: str

    def __init__(self, host: int, hostname: str, pid: int, address: str) -> None:
        self._set(host=HostId(host), hostname=hostname, pid=pid, address=address)


class HostEnd(Frozen):
    """A host is no longer a member: it was lost, or shut down (`reason.kind` is `stopped`). The ends of its procs come first; immutable."""

    __slots__ = ("host", "hostname", "reason")

    host: HostId
    hostname: str
    reason: ExitReason

    def __init__(self, host: int, hostname: str, reason: ExitReason) -> None:
        self._set(host=HostId(host), hostname=hostname, reason=reason)

    def describe(self) -> str:
        """The cause, in the text of core's errors."""
        return cause(self.reason, host=self.hostname)


class Listening:
    """A registered listener, made by `listen`."""

    __slots__ = ("_members", "listener")

    def __init__(self, members: Members, listener: Listener) -> None:
        self.listener = listener
        self._members: Members | None = members

    def stop(self) -> None:
        """The listener gets no further event; does nothing if it was stopped or left out before."""
        members, self._members = self._members, None
        if members is not None:
            members.remove(self)

    def is_active(self) -> bool:
        """Whether the listener gets events: until `stop`, and until it raises."""
        return self._members is not None


class _Arrivals:
    """Members that have not joined yet: `cell` has an answer for each, by rank."""

    __slots__ = ("cell", "event", "ranks")

    def __init__(self, cell: PendingCall, uids: list[int], event: Callable[[int], MembershipEvent]) -> None:
        self.cell = cell
        self.event = event
        # The ranks of the members that have neither joined nor ended.
        self.ranks = {uid: rank for rank, uid in enumerate(uids)}

    def take(self, uid: int) -> MembershipEvent | None:
        """The event of a member that has joined and was not reported yet."""
        rank = self.ranks.get(uid)
        if rank is None or (result := self.cell.result(rank)) is None:
            return None
        del self.ranks[uid]
        return None if result.status in (ERROR, PROC_ENDED) else self.event(rank)


class Members:
    """The events of the listeners of a process. All methods but `listen` and `remove` deliver on the extension thread."""

    def __init__(self, process: LocalProcess) -> None:
        self.process = process
        self.listeners: tuple[Listening, ...] = ()
        self.arrivals: list[_Arrivals] = []

    def remove(self, listening: Listening) -> None:
        with _lock:
            self.listeners = tuple(other for other in self.listeners if other is not listening)
            if not self.listeners and self.process.membership is self:
                self.process.membership = None

    # ---- events, from the threads on which they occur

    def spawned(self, info: MeshInfo) -> None:
        """Records that procs are being started: each answers when it is ready."""
        native = self.process.native
        procs = list(info.procs)
        hosts = list(each_of(info.agents))
        cell = native.cell(STREAM, len(procs), procs)
        arrivals = _Arrivals(cell, procs, lambda rank: ProcJoined(procs[rank], hosts[rank], info.name, rank))
        thread = extension_thread()
        thread.run(lambda: self.arrivals.append(arrivals))
        for rank, proc in enumerate(procs):
            native.request(proc, PING, rank.to_bytes(4, "little") + bytes(8), cell.slot)
        for index in range(len(procs)):
            thread.when_arrived(cell, index, lambda index=index: self._arrived(arrivals, procs, index))

    def attaching(self, attachment: Attached, again: set[int]) -> None:
        """Records that hosts are being attached. The hosts of the ranks `again` have joined before."""

        def joined(rank: int) -> MembershipEvent:
            result = attachment.cell.result(rank)
            assert result is not None
            joined = json.loads(result.raw())
            return HostJoined(attachment.ids[rank], joined["host"], joined["pid"], attachment.addresses[rank])

        arrivals = _Arrivals(attachment.cell, list(attachment.ids), joined)
        for rank in again:
            arrivals.ranks.pop(attachment.ids[rank], None)
        thread = extension_thread()
        thread.run(lambda: self.arrivals.append(arrivals))
        thread.when_arrived(attachment.cell, 0, lambda: self._attached(arrivals))

    def ended(self, ends: list[tuple[int, ProcessEnd]]) -> None:
        """Reports processes and hosts that have ended for one cause."""
        extension_thread().run(lambda: self._ended(ends))

    # ---- on the extension thread

    def _arrived(self, arrivals: _Arrivals, procs: list[int], index: int) -> None:
        result = arrivals.cell.arrival(index)
        if result is not None:
            self._notify(arrivals.take(procs[result.rank]))
        self._forget(arrivals)

    def _attached(self, arrivals: _Arrivals) -> None:
        for uid in list(arrivals.ranks):
            self._notify(arrivals.take(uid))
        self._forget(arrivals)

    def _ended(self, ends: list[tuple[int, ProcessEnd]]) -> None:
        for uid, end in ends:
            for arrivals in list(self.arrivals):
                # The member may have joined and ended since the thread looked.
                self._notify(arrivals.take(uid))
                arrivals.ranks.pop(uid, None)
                self._forget(arrivals)
            if self.process.native.is_host(uid):
                self._notify(HostEnd(uid, end.host, exit_reason(end)))
            else:
                self._notify(proc_end(ProcId(uid), end))

    def _forget(self, arrivals: _Arrivals) -> None:
        if not arrivals.ranks and arrivals in self.arrivals:
            self.arrivals.remove(arrivals)

    def _notify(self, event: MembershipEvent | None) -> None:
        if event is None:
            return
        for listening in self.listeners:
            if not listening.is_active():
                continue
            try:
                listening.listener(event)
            except BaseException as e:  # an exception of another wheel: the next listener belongs to another one
                listening.stop()
                _log(listening.listener, event, e)


def _log(listener: Listener, event: MembershipEvent, error: BaseException) -> None:
    import logging

    name = f"{getattr(listener, '__module__', '?')}.{getattr(listener, '__qualname__', repr(listener))}"
    logging.getLogger("monarch.extension").error("left out: the membership listener %s raised at %r", name, event, exc_info=error)


_lock = allocate_lock()


def listen(listener: Listener) -> Listening:
    """Calls `listener(event)` on the extension thread for each join and end of a member that this process learns of, until `stop`.

    Events are `ProcJoined`, `ProcEnd`, `HostJoined` and `HostEnd`; earlier events are not repeated. A listener that raises is logged
    and gets no further event. A function that is given twice gets each event twice.
    """
    if not callable(listener):
        raise TypeError(f"listen({listener!r}): expected a function that takes an event")
    process = current_process()
    # The thread starts here, where its failure has a caller; the sources of events have none.
    extension_thread()
    with _lock:
        members = process.membership
        if not isinstance(members, Members):
            members = process.membership = Members(process)
        listening = Listening(members, listener)
        members.listeners = (*members.listeners, listening)
    return listening
