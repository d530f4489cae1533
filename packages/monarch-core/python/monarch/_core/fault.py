"""Faults that a test makes: real signals to real processes, and frames held back on real links.

The agent's process knows the processes, so it makes and heals all faults of the job; a proc asks it to. What is still frozen when the
client ends is woken first, so that it can end as usual. A delay is kept by the proc itself, for all its links, in both directions.
"""

from __future__ import annotations

import marshal
import os
from _thread import RLock
from time import monotonic, sleep

from monarch._core.duration import parse_duration
from monarch._core.identity import new_uid
from monarch._core.process import DELAY, ERROR, FAULT, FIRST_ERROR, GATHER, OK, LocalProcess, current_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal, Self

    from monarch._core.actor_mesh import ActorMesh
    from monarch._core.proc_mesh import ProcMesh

    Kind = Literal["kill", "freeze", "cut", "delay"]

KINDS = ("kill", "freeze", "cut", "delay")
# How long a process may take to start, and one that was signalled to stop, seconds: only a broken machine gets there.
_PATIENCE = 30.0
_POLL = 0.0005


class Fault:
    """A fault that has begun; `heal()` ends it, as does leaving it as a context."""

    __slots__ = ("_id", "_process", "kind")

    def __init__(self, process: LocalProcess, id: int, kind: str) -> None:
        self._process = process
        self._id = id
        self.kind = kind

    def heal(self) -> None:
        """Ends the fault: frozen processes go on, links are as fast as before. Again: nothing. A kill stays."""
        _ask(self._process, ("heal", self._id))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.heal()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.heal()


def fault(mesh: ProcMesh | ActorMesh | Any, kind: Kind, *, duration: str | None = None, by: str = "10ms") -> Fault:
    """Makes a fault in exactly the processes of `mesh`, a slice of processes or of actors, and gives a handle with `heal()`.

    `kill` sends SIGKILL. `freeze` sends SIGSTOP, `heal()` SIGCONT. `delay` holds everything that the processes send and receive
    for `by`, in order. `duration`, such as `"2s"`, heals by itself. A process that is starting gets the fault when it is there, one that is
    gone none. Returns when signals have taken effect, and delays are in place.

    `ValueError` for another kind, a duration of a kill, a process that is not the job's, or the client. `NotImplementedError` for `cut`,
    which needs several hosts.

    ```python
    from monarch.actor import this_host
    from monarch.actor.testing import fault

    with this_host().spawn_procs({"gpus": 2}) as procs:
        with fault(procs.slice(gpus=1), "freeze"):
            procs.slice(gpus=0).initialized.get()
    ```
    """
    if kind not in KINDS:
        raise ValueError(f"unknown fault {kind!r}: expected one of {', '.join(KINDS)}")
    if kind == "cut":
        raise NotImplementedError("fault 'cut' cuts hosts off from each other: it needs a mesh of several hosts, and there is one")
    length = None if duration is None else parse_duration(duration) / 1e9
    if kind == "kill" and length is not None:
        raise ValueError("fault 'kill' cannot be healed, so it takes no duration")
    held = parse_duration(by)
    process = current_process()
    procs = _procs_of(process, mesh)
    id = new_uid()
    _ask(process, ("begin", id, kind, procs, length, held))
    return Fault(process, id, kind)


def _procs_of(process: LocalProcess, mesh: Any) -> list[int]:
    from monarch._core.actor_mesh import ActorMesh
    from monarch._core.proc_mesh import ProcMesh

    if isinstance(mesh, ProcMesh):
        procs = mesh._procs()
    elif isinstance(mesh, ActorMesh):
        procs = [mesh._info.procs[r] for r in mesh._base_ranks()]
    else:
        raise TypeError(f"fault takes a mesh of processes or actors, not {type(mesh).__name__}")
    if mesh._info.job != process.job:
        raise ValueError(f"{mesh!r} belongs to another client: only its own can make faults there")
    if process.agent_uid in procs:
        raise ValueError(f"{mesh!r} is in the client's own process, which a fault cannot be made in")
    return list(dict.fromkeys(procs))


def _ask(process: LocalProcess, request: tuple[Any, ...]) -> None:
    """Has the agent's process do it."""
    if process.is_client:
        _do(process, request)
        return
    cell = process.native.cell(FIRST_ERROR, 1, [process.agent_uid])
    process.native.request(process.agent_uid, FAULT, marshal.dumps(request), cell.slot)
    cell.wait()
    error = cell.error()
    if error is not None:
        raise RuntimeError(error.raw().decode())


def handle_request(process: LocalProcess, sender: int, slot: int, body: bytes) -> None:
    """A proc asks. On the housekeeping thread, which must not wait for processes."""

    def run() -> None:
        from monarch._core._native import set_runtime_thread

        set_runtime_thread()
        try:
            _do(process, marshal.loads(body))
        except Exception as e:
            process.native.reply(sender, slot, 0, ERROR, str(e).encode())
        else:
            process.native.reply(sender, slot, 0, OK, b"")

    process.start_thread(run)


# ---- in the agent's process

_lock = RLock()
# Faults that can be healed: kind, procs, and how long frames are held (ns).
_active: dict[int, tuple[str, list[int], int]] = {}


def _do(process: LocalProcess, request: tuple[Any, ...]) -> None:
    if request[0] == "heal":
        _heal(process, request[1])
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
            return
        kind, procs, _ = found
        if kind == "freeze":
            # One that another fault has frozen too stays so.
            for uid in set(procs) - _frozen():
                _signal(process, uid, _number("SIGCONT"))
            return
    _delay(process, procs, [])


def heal_all(process: LocalProcess) -> None:
    """The client ends: nothing frozen may be left, and what is to end should hear of it."""
    for id in list(_active):
        _heal(process, id)


def _frozen() -> set[int]:
    return {uid for kind, procs, _ in _active.values() if kind == "freeze" for uid in procs}


def _number(name: str) -> int:
    import signal

    return getattr(signal, name).value


def _signal(process: LocalProcess, uid: int, number: int) -> None:
    """Signals a proc, once it is there, and waits until that has had its effect; nothing if it is gone."""
    import signal

    pid = _pid(process, uid)
    if pid is None:
        return
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        # Only from here on can the number not become somebody else's.
        if _pid(process, uid) != pid or _stat(pid)[1] != process.native.zygote_pid():
            return
        signal.pidfd_send_signal(fd, number)
        if number == signal.SIGSTOP:
            end = monotonic() + _PATIENCE
            while _stat(pid)[0] not in "TtZX" and monotonic() < end:
                sleep(_POLL)
    except ProcessLookupError:
        return
    finally:
        os.close(fd)


def _pid(process: LocalProcess, uid: int) -> int | None:
    """The pid of a proc, which may be starting; none if it is gone."""
    end = monotonic() + _PATIENCE
    while process.native.ended(uid) is None:
        pid = dict(process.native.alive_procs()).get(uid)
        if pid:
            return pid
        if monotonic() > end:
            raise RuntimeError(f"a process of the mesh did not start within {_PATIENCE:.0f} s")
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
    """Tells procs how long to hold frames: the longest of the delays that they have. Those that are frozen hear it when they go on."""
    with _lock:
        held = {uid: max((h for k, us, h in _active.values() if k == "delay" and uid in us), default=0) for uid in procs}
        cell = process.native.cell(GATHER, len(wait_for), wait_for)
        for uid in procs:
            rank = wait_for.index(uid) if uid in wait_for else 0
            body = marshal.dumps((rank, held[uid]))
            process.native.request(uid, DELAY, body, cell.slot if uid in wait_for else 0)
    if wait_for:
        cell.wait(0, _PATIENCE)


def handle_delay(process: LocalProcess, sender: int, slot: int, body: bytes) -> None:
    """In the proc: its links hold frames from now on."""
    rank, held = marshal.loads(body)
    process.native.reply(sender, slot, rank, OK, b"")
    process.native.hold_frames(held)
