"""Faults for tests: real signals to real processes, and delayed frames on real links.

The agent of a host knows the processes there, so it makes and heals their faults at the request of other processes. Processes that are
still frozen when the client ends are continued first, so that they can end as usual. A proc itself applies a delay, to all its links, in
both directions. `host_fault` has the faults of whole hosts.
"""

from __future__ import annotations

import marshal
import os
from _thread import RLock
from time import monotonic, sleep

from monarch._core._native.protocol import ERROR, FIRST_ERROR, GATHER, OK
from monarch._core.config.duration import parse_duration
from monarch._core.process.current import current_process
from monarch._core.process.identity import new_uid
from monarch._core.process.process import DELAY, FAULT, LocalProcess
from monarch._core.process.request_fields import fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Literal, Self

    from monarch._core.call.actor_mesh import ActorMesh
    from monarch._core.hosts.host_mesh import HostMesh, ProcMesh

    Kind = Literal["kill", "freeze", "cut", "delay"]

KINDS = ("kill", "freeze", "cut", "delay")
# Seconds for a process to start, and for a signalled process to stop: only a broken machine takes longer.
_PROCESS_TIMEOUT = 30.0
_POLL = 0.0005


class Fault:
    """An active fault; `heal()` ends it, as does leaving it as a context."""

    __slots__ = ("_id", "_process", "_where", "kind")

    def __init__(self, process: LocalProcess, id: int, kind: str, where: Iterable[int]) -> None:
        self._process = process
        self._id = id
        self.kind = kind
        # The agents that have made it.
        self._where = tuple(where)

    def heal(self) -> None:
        """Ends the fault: frozen processes continue, delays end. A second call has no effect. A kill stays, and so does a frozen host."""
        for agent in self._where:
            _ask(self._process, agent, ("heal", self._id))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.heal()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.heal()


def fault(mesh: HostMesh | ProcMesh | ActorMesh | Any, kind: Kind, *, duration: str | None = None, by: str = "10ms") -> Fault:
    """Makes a fault in exactly the hosts or processes of `mesh`. Returns when signals have taken effect, and delays are in place.

    A starting process gets the fault when it is ready, an ended one gets none. For attached hosts: `cut` stops all traffic between them and
    all others of the job, the client included, without closing connections; `kill` kills their agents, and with them all procs there;
    `freeze` stops both, for a `duration` that must be given.

    Args:
        mesh: hosts, processes or actors, or a slice of them.
        kind: `kill` sends SIGKILL, `freeze` sends SIGSTOP, `delay` holds all frames that the processes send and receive, in order; `cut`.
        duration: text such as `"2s"`, after which the fault heals by itself.
        by: the delay, text such as `"10ms"`.

    Returns:
        A handle, and context manager, with `heal()`, which sends SIGCONT and ends delays.

    Raises:
        ValueError: an unknown or unsuitable kind, a duration of a kill, processes of another job, or the client.

    ```python
    from monarch.actor import Actor, endpoint, this_host
    from monarch.actor.testing import fault

    class Worker(Actor):
        @endpoint
        def ping(self) -> str:
            return "pong"

    with this_host().spawn_procs({"gpus": 2}) as procs:
        workers = procs.spawn("workers", Worker)
        workers.ping.call().get()
        with fault(procs.slice(gpus=1), "freeze"):
            assert workers.slice(gpus=0).ping.call_one().get() == "pong"
            answer = workers.slice(gpus=1).ping.call_one()
        assert answer.get() == "pong"
    ```
    """
    if kind not in KINDS:
        raise ValueError(f"unknown fault {kind!r}: expected one of {', '.join(KINDS)}")
    length = None if duration is None else parse_duration(duration) / 1e9
    if kind == "kill" and length is not None:
        raise ValueError("fault 'kill' cannot be healed, so it takes no duration")
    held = parse_duration(by)
    from monarch._core.hosts.host_mesh import HostMesh

    process, id = current_process(), new_uid()
    if isinstance(mesh, HostMesh):
        _ask(process, process.peers.job, ("begin hosts", id, kind, _hosts_of(process, mesh, kind, length), length))
        return Fault(process, id, kind, [process.peers.job])
    if kind == "cut":
        raise ValueError("fault 'cut' cuts hosts off: give it a mesh of hosts")
    procs = _procs_of(process, mesh)
    for agent, there in procs.items():
        _ask(process, agent, ("begin", id, kind, there, length, held))
    return Fault(process, id, kind, procs)


def _hosts_of(process: LocalProcess, mesh: HostMesh, kind: str, length: float | None) -> list[int]:
    hosts = list(dict.fromkeys(mesh.__core__.agent_ids()))
    if process.peers.job in hosts:
        raise ValueError(f"{mesh!r} is the client's own machine, which a fault cannot be made in")
    if kind == "delay":
        raise ValueError("fault 'delay' is one of processes: give it those of the hosts")
    if kind == "freeze" and length is None:
        raise ValueError("fault 'freeze' of hosts needs a duration: no process could wake them")
    return hosts


def _procs_of(process: LocalProcess, mesh: Any) -> dict[int, list[int]]:
    """The procs of the mesh by the agents of their hosts."""
    from monarch._core.call.actor_mesh import ActorMesh
    from monarch._core.call.received_mesh import reach
    from monarch._core.call.runs import each_of
    from monarch._core.hosts.host_mesh import ProcMesh

    if not isinstance(mesh, (ProcMesh, ActorMesh)):
        raise TypeError(f"fault takes a mesh of hosts, processes or actors, not {type(mesh).__name__}")
    info = mesh.__core__.info
    if info.job != process.peers.job:
        raise ValueError(f"{mesh!r} belongs to another client: only its own can make faults there")
    agents = each_of(info.agents) or [process.agent_uid] * len(info.procs)
    found: dict[int, list[int]] = {}
    for rank in mesh.__core__.shape.ranks():
        there, proc = found.setdefault(agents[rank], []), info.procs[rank]
        if proc == agents[rank]:
            raise ValueError(f"{mesh!r} is in the client's own process, which a fault cannot be made in")
        if proc not in there:
            there.append(proc)
    reach(process, info.job, [(agent, agent) for agent in found])
    return found


def _ask(process: LocalProcess, agent: int, request: tuple[Any, ...]) -> None:
    """Requests a fault from the process of an agent."""
    if process.is_client and agent == process.agent_uid:
        _do(process, request)
        return
    cell = process.native.cell(FIRST_ERROR, 1, [agent])
    process.native.request(agent, FAULT, marshal.dumps((*request, 0)), cell.slot)
    cell.wait()
    error = cell.error()
    # If the host is gone, no process is left for a fault.
    if error is not None and error.status == ERROR:
        raise RuntimeError(error.raw().decode())


def handle_request(process: LocalProcess, sender: int, slot: int, body: bytes) -> None:
    """Handles the request of a proc. Called on the housekeeping thread, which must not wait for processes."""

    def run() -> None:
        from monarch._core._native import set_runtime_thread

        set_runtime_thread()
        *request, rank = marshal.loads(body)
        try:
            _do(process, tuple(request))
        except Exception as e:
            process.native.reply(sender, slot, rank, ERROR, str(e).encode())
        else:
            process.native.reply(sender, slot, rank, OK, b"")

    try:
        process.execution.start_thread(run)
    except RuntimeError as e:  # no thread can be started, and the requester waits
        process.native.reply(sender, slot, marshal.loads(body)[-1], ERROR, str(e).encode())


# ---- in the agent's process

_lock = RLock()
# Faults that can be healed: kind, procs, and the delay of frames (ns).
_active: dict[int, tuple[str, list[int], int]] = {}


def _do(process: LocalProcess, request: tuple[Any, ...]) -> None:
    if request[0] == "heal":
        _heal(process, request[1])
        return
    if request[0] != "begin":
        from monarch._core.testing import host_fault

        if request[0] == "begin hosts":
            host_fault.begin(process, *request[1:])
        else:
            host_fault.carry_out(process, request)
        return
    _, id, kind, procs, length, held = request
    if kind == "kill":
        for uid in procs:
            _signal(process, uid, _number("SIGKILL"))
        return
    with _lock:
        frozen = _frozen()
        _active[id] = (kind, procs, held)
    if kind == "freeze":
        for uid in procs:
            _signal(process, uid, _number("SIGSTOP"))
    else:
        _delay(process, procs, [uid for uid in procs if uid not in frozen])
    if length is not None:
        from threading import Timer

        timer = Timer(length, _heal, (process, id))
        timer.daemon = True
        timer.start()


def _heal(process: LocalProcess, id: int) -> None:
    with _lock:
        found = _active.pop(id, None)
        if found is None:
            from monarch._core.testing import host_fault

            host_fault.heal(process, id)
            return
        kind, procs, _ = found
        if kind == "freeze":
            # A process that another fault has frozen too stays frozen.
            for uid in set(procs) - _frozen():
                _signal(process, uid, _number("SIGCONT"))
            return
    _delay(process, procs, [])


def heal_all(process: LocalProcess) -> None:
    """Heals all faults at the end of the client: no process may stay frozen, and ending processes must be notified."""
    from monarch._core.testing import host_fault

    for id in list(_active):
        _heal(process, id)
    host_fault.heal_all(process)


def _frozen() -> set[int]:
    return {uid for kind, procs, _ in _active.values() if kind == "freeze" for uid in procs}


def _number(name: str) -> int:
    import signal

    return getattr(signal, name).value


def _signal(process: LocalProcess, uid: int, number: int) -> None:
    """Signals a proc, once it is ready, and waits until the signal has taken effect; does nothing if the proc is gone."""
    import signal

    pid = _pid(process, uid)
    if pid is None:
        return
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        # Only from here on is it certain that the number still belongs to this process.
        if _pid(process, uid) != pid or _stat(pid)[1] != process.native.zygote_pid():
            return
        signal.pidfd_send_signal(fd, number)
        if number == signal.SIGSTOP:
            end = monotonic() + _PROCESS_TIMEOUT
            while _stat(pid)[0] not in "TtZX" and monotonic() < end:
                sleep(_POLL)
    except ProcessLookupError:
        return
    finally:
        os.close(fd)


def _pid(process: LocalProcess, uid: int) -> int | None:
    """The pid of a proc, which may be starting; None if it is gone."""
    end = monotonic() + _PROCESS_TIMEOUT
    while process.native.ended(uid) is None:
        pid = dict(process.native.alive_procs()).get(uid)
        if pid:
            return pid
        if monotonic() > end:
            raise RuntimeError(f"a process of the mesh did not start within {_PROCESS_TIMEOUT:.0f} s")
        sleep(_POLL)
    return None


def _stat(pid: int) -> tuple[str, int]:
    """State and parent of a process."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            fields = f.read().rpartition(") ")[2].split()
    except OSError:
        return "X", 0
    return fields[0], int(fields[1])


def _delay(process: LocalProcess, procs: list[int], wait_for: list[int]) -> None:
    """Sets the delay of procs to the longest of their present delays. Frozen procs receive it when they continue."""
    with _lock:
        held = {uid: max((h for k, us, h in _active.values() if k == "delay" and uid in us), default=0) for uid in procs}
        cell = process.native.cell(GATHER, len(wait_for), wait_for)
        for uid in procs:
            rank = wait_for.index(uid) if uid in wait_for else 0
            body = marshal.dumps((rank, held[uid]))
            process.native.request(uid, DELAY, body, cell.slot if uid in wait_for else 0)
    if wait_for:
        cell.wait(0, _PROCESS_TIMEOUT)


def handle_delay(process: LocalProcess, sender: int, slot: int, body: bytes) -> None:
    """Handles a delay in the proc: its links hold frames from now on."""
    rank, held = fields(body, int, int)
    process.native.reply(sender, slot, rank, OK, b"")
    process.native.hold_frames(held)
