"""This process as a member of the job: the client, or a proc. There is at most one, made on first need."""

from __future__ import annotations

import os
import sys
from _contextvars import ContextVar
from _thread import RLock, get_ident, start_new_thread
from time import monotonic
from weakref import WeakValueDictionary

from monarch._core import config
from monarch._core._native import Process as NativeProcess
from monarch._core._native import Supervision
from monarch._core.identity import ActorAddr, new_uid, to_base58

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from monarch._core._native import Hosts
    from monarch._core.actor_mesh import ActorMesh
    from monarch._core.attachment import Attachment
    from monarch._core.cells import Cells
    from monarch._core.local_actor import LocalActor
    from monarch._core.mesh_info import MeshInfo
    from monarch._core.notebook import Console
    from monarch._core.owner import Owner
    from monarch._core.supervision import OwnedMesh
    from monarch._core.universe import Universe

# Requests between housekeeping threads; 1 and 2 are known to the native side too.
FAILURE, UNDELIVERABLE, CONTROLLER, PING, LOG_LEVEL, WATCH_STOP, OPEN_DOOR = 1, 2, 3, 4, 5, 6, 7
AGGREGATE, MISSING = 20, 21
# Of the test kit.
FAULT, DELAY = 30, 31
# Code has been mirrored, or is to be reloaded.
WORKSPACE = 50
# Of the package that moves large memory.
BULK = 60

# How a call waits for its answers; the native side's numbers.
FIRST_ERROR, GATHER, STREAM, NO_ANSWER = 0, 1, 2, -1

# What an answer is; the native side's numbers.
OK, ERROR, FAILED, PROC_ENDED, CLOSED, UNDELIVERED = 0, 1, 2, 3, 4, 5


class LocalProcess:
    """The runtime of this process and everything in it that Python knows of."""

    # Of a simulated process: the world it belongs to, and whether it is no more.
    universe: Universe | None = None
    killed = False
    # The clock of time-outs.
    now = staticmethod(monotonic)

    def __init__(self, native: NativeProcess, host: str, name: str) -> None:
        self.native = native
        # Who owns what here, and who is told of failures.
        self.supervision = Supervision()
        self.uid: int = native.uid
        self.is_client = native.agent_uid == native.uid
        self.agent_uid: int = native.agent_uid
        # The client whose job this process belongs to.
        self.job: int = native.agent_uid
        self.host = host
        self.name = name
        self.pid = os.getpid()
        self.actors: dict[int, LocalActor] = {}
        # Actors that had no thread to run on: by mesh, the failure as it is sent.
        self.unstarted: dict[int, bytes] = {}
        self.owned: dict[int, OwnedMesh] = {}
        self.controllers: dict[str, ActorMesh] = {}
        self.infos: WeakValueDictionary[int, MeshInfo] = WeakValueDictionary()
        self.ended: dict[int, Any] = {}
        # The last ones that failed and are not owned any more.
        self.failed_meshes: list[MeshInfo] = []
        # Owners of meshes that this process refers to.
        self.watched: set[int] = set()
        # Meshes of procs that are to be ready, by the slot that they answer, and how often they were looked at.
        self.starting: dict[int, tuple[MeshInfo, int]] = {}
        self.closed = False
        self.is_shared = False
        # Of a client or an agent, the connections to other hosts.
        self.hosts: Hosts | None = None
        self.attachments: list[Attachment] = []
        self.creator_bytes: bytes | None = None
        # Of the job's files on this machine.
        self.log_dir = ""
        # Of a proc: the one it is, as a mesh, and the mesh it was spawned in.
        self.proc_info: MeshInfo | None = None
        self.proc_rank = 0
        # Of a proc whose `bootstrap` has failed: the error, and its traceback. No actor runs here.
        self.bootstrap_failure: tuple[str, str] | None = None
        self.python_executable: str | None = None
        # What variables that are read only when an interpreter starts were in the process that procs are forked from.
        self.start_variables: dict[str, str] = {}
        # In a notebook, what carries the lines of procs to the cells.
        self.console: Console | None = None
        # In an interactive shell, where failures that are not handled are shown.
        self.cells: Cells | None = None
        from monarch._core.owner import Owner

        self.owner: Owner = Owner(self, 0, "<root>" if self.is_client else name)

    @property
    def address(self) -> str:
        """The address that identities show; opaque."""
        return f"ipc://@monarch-{to_base58(self.agent_uid)}"

    def actor_addr(self, label: str, uid: int) -> ActorAddr:
        proc = f"{'client' if self.is_client else 'proc'}<{to_base58(self.uid)}>"
        return ActorAddr(addr=self.address, proc_name=proc, actor_name=f"{label}<{to_base58(uid)}>" if uid else label)

    def pid_of(self, proc: int) -> int | None:
        """Of a proc, as far as this process knows it: the client has started all of them."""
        if proc == self.uid:
            return self.pid
        end = self.native.ended(proc)
        return end[0] if end is not None else dict(self.native.alive_procs()).get(proc)

    def share(self) -> None:
        """A handle is being pickled outside a message: whoever unpickles it must find the agent."""
        if self.is_client:
            self.native.open_door()
        elif not self.is_shared:
            cell = self.native.cell(FIRST_ERROR, 1, [self.agent_uid])
            self.native.request(self.agent_uid, OPEN_DOOR, b"", cell.slot)
            cell.wait()
            self.is_shared = True

    def start_actor(self, actor: LocalActor) -> None:
        from monarch._core.actor_thread import ReportingActorThread

        ReportingActorThread(actor).start()

    def start_thread(self, body: Callable[..., Any], *args: Any) -> None:
        start_new_thread(body, args)


_lock = RLock()
_process: LocalProcess | None = None
_forked_from = 0
# How many worlds are simulated in this process, and the simulated process that runs in this context.
_universes = 0
_simulated: ContextVar[LocalProcess | None] = ContextVar("monarch_simulated", default=None)


def simulated_process() -> LocalProcess | None:
    """The process of a `Universe` that this code belongs to."""
    return _simulated.get() if _universes else None


def enter_simulated(process: LocalProcess | None) -> None:
    """From now on this context belongs to the process; None: to no universe."""
    _simulated.set(process)


def count_universes(more: int) -> None:
    global _universes
    with _lock:
        _universes += more


def current_process() -> LocalProcess:
    """This process; in a script that has none yet, the client is started. In a `Universe`, the simulated one."""
    if _universes:
        process = _simulated.get()
        if process is not None and not _forked_from:
            return process
    process = _process
    if process is not None:
        return process
    if _forked_from:
        raise RuntimeError(
            f"process {os.getpid()} was forked from process {_forked_from}, which was using Monarch: "
            "use the multiprocessing start method `spawn` or `forkserver`"
        )
    with _lock:
        return _process or _start_client()


def known_process() -> LocalProcess | None:
    """This process if it has a runtime already."""
    return _process


def set_process(process: LocalProcess) -> None:
    global _process
    from monarch._core import fork

    _process = process
    fork.watch()
    os.register_at_fork(after_in_child=_forget_in_child)


def _forget_in_child() -> None:
    global _process
    process = _process
    if process is not None:
        _process = None
        forked(process.pid, [process], process.native)


def forked(parent: int, processes: list[LocalProcess], native: NativeProcess | None = None) -> None:
    """This process is a fork of `parent`, in which these lived, on that runtime."""
    global _forked_from
    from monarch._core.fork import become_child

    _forked_from = _forked_from or parent
    become_child(_forked_from, processes, native)


def host_name() -> str:
    return os.uname().nodename


def zygote_command(executable: str | None = None) -> list[str]:
    """The command that runs the process that procs are forked from, with our own modules found as they were here."""
    code = f"import sys; sys.path[:] = {sys.path!r}; from monarch._core.zygote import main; main()"
    return [executable or sys.executable, "-c", code]


# Variables that an interpreter or its libraries read when they start: too late to set in a fork.
_START_VARIABLES = ("LD_", "PYTHON", "MALLOC_", "GLIBC_TUNABLES")


def start_variables() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k.startswith(_START_VARIABLES)}


def start_client(uid: int) -> LocalProcess:
    """Starts the client of this process with an identity that others know already; `RuntimeError` if there is one with another."""
    process = known_process()
    if process is None and not _forked_from:
        with _lock:
            process = _process or _start_client(uid)
    process = process or current_process()
    if process.uid != uid:
        raise RuntimeError("this process has an identity already: begin to be a worker before anything else is done with monarch")
    return process


def _start_client(uid: int = 0) -> LocalProcess:
    # It takes the thread that imports it first for the main thread, and waits for that one at exit: not one of ours, which never end.
    import threading as threading

    from monarch._core.shutdown import register_exit

    if _exited:
        from monarch._core._native import stay_if_leaving

        stay_if_leaving()
        raise RuntimeError("the Monarch client of this process has been shut down and cannot be started again")
    _open_standard_descriptors()
    tail = config.value("tail_log_lines")
    native = NativeProcess.client(uid or new_uid(), host_name(), zygote_command(), list(os.environ.items()), tail, _consoles())
    # It starts while the rest is imported.
    native.warm_up()
    try:
        process = LocalProcess(native, host_name(), "client")
        process.start_variables = start_variables()
        # All that the exit needs too: there may be no descriptor left then to read it from its files.
        from monarch._core import duration, log_directory, root_fault, runtime_log, stacks
        from monarch._core.housekeeping import run_client

        del duration, log_directory, root_fault
        start_new_thread(run_client, (process,))
    except OSError as e:
        native.close_agent(0.0)
        raise OSError(e.errno, f"cannot start the runtime: {e.strerror}", e.filename) from None
    except BaseException:  # no thread is to be had: a client without housekeeping would wait for ever
        native.close_agent(0.0)
        raise
    set_process(process)
    register_exit(process)
    if is_main_thread():
        _listen_for_interrupts()
    stacks.install(process)
    runtime_log.start(process)
    runtime_log.event("client.start")
    if "IPython" in sys.modules:
        from monarch._core.notebook import install

        install(process)
    return process


# Interrupts the main thread where Ctrl-C would not: in the background of a shell SIGINT is ignored, and a script may ignore it too or
# leave it to the kernel. One that nobody else uses: neither libraries nor debuggers take the last of the real-time signals.
INTERRUPT_SIGNAL = 62


def _listen_for_interrupts() -> None:
    if TYPE_CHECKING:
        import signal
    else:
        import _signal as signal  # without the enumerations that the other one makes first

    if signal.getsignal(INTERRUPT_SIGNAL) == signal.SIG_DFL:
        signal.signal(INTERRUPT_SIGNAL, _interrupted)


def _interrupted(number: int, frame: object) -> None:
    from monarch._core.root_fault import is_leaving

    if not is_leaving():
        raise KeyboardInterrupt


def _open_standard_descriptors() -> None:
    """A socket of ours must not become descriptor 1 because that was closed: lines of procs are written there."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def _consoles() -> list[int]:
    """Where lines of procs go: not into a file of the user that got the number of a stream closed from the start."""
    return [-1 if stream is None else fd for fd, stream in ((1, sys.__stdout__), (2, sys.__stderr__))]


_exited = False


def mark_exited() -> None:
    global _exited, _process
    _exited = True


def has_exited() -> bool:
    return _exited


def is_main_thread() -> bool:
    import threading

    return threading.main_thread().ident == get_ident()
