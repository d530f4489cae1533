"""The Python state of a process of a job, the client or a proc, beside its native node."""

from __future__ import annotations

import os
from _thread import start_new_thread
from time import monotonic
from weakref import WeakValueDictionary

from monarch._core._native import Process as NativeProcess
from monarch._core._native.protocol import FIRST_ERROR
from monarch._core.process.ends import ProcEnds
from monarch._core.process.identity import ActorAddr, to_base58
from monarch._core.process.owner import Owner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from monarch._core._native import Hosts
    from monarch._core.process.mesh_info import MeshInfo
    from monarch._core.process.parts import Attached, Cells, Console, Listeners, Owned, RunningActor, World

# Requests between housekeeping threads that native code does not handle.
CONTROLLER, PING, LOG_LEVEL, WATCH_STOP, OPEN_CONTROL_SOCKET = 3, 4, 5, 6, 7
AGGREGATE, MISSING = 20, 21
# The query for the event rings of this host.
RECORDINGS = 22
# Requests of the test kit.
FAULT, DELAY = 30, 31
# The notice that code has been mirrored, or must be reloaded.
WORKSPACE = 50
# Requests of other wheels, by name; and queries whether the agent knows a process, and in which job it knows a host.
NAMED, KNOWN, BESIDE = 60, 61, 62


class LocalProcess:
    """The runtime of this process and all its objects on the Python side."""

    # Set for a simulated process: its world, and whether it was killed.
    world: World | None = None
    killed = False
    # The clock of time-outs.
    now = staticmethod(monotonic)

    def __init__(self, native: NativeProcess, host: str, name: str) -> None:
        self.native = native
        # The native table of owners, which decides the owner that each failure reaches.
        self.supervision = native.supervision
        self.uid: int = native.uid
        self.is_client = native.agent_uid == native.uid
        self.agent_uid: int = native.agent_uid
        # The client of this process's job.
        self.job: int = native.agent_uid
        self.host = host
        self.name = name
        self.pid = os.getpid()
        self.actors: dict[int, RunningActor] = {}
        # Actors without a thread: by mesh, the failure as it is sent.
        self.unstarted: dict[int, bytes] = {}
        self.owned: dict[int, Owned] = {}
        self.controllers: dict[str, Any] = {}
        self.infos: WeakValueDictionary[int, MeshInfo] = WeakValueDictionary()
        self.ended = ProcEnds(native)
        # The last failed meshes that are no longer owned.
        self.failed_meshes: list[MeshInfo] = []
        # Processes whose ends are watched, because they own meshes that this process refers to.
        self.watched: set[int] = set()
        # Processes that other wheels have placed on other hosts by `reach`.
        self.reached: set[int] = set()
        # In a service: the id of its host in each job that it serves. In a process that uses services: by the job of a service's agent, the
        # host of the service and its job, as this process knows them.
        self.serves: dict[int, int] = {}
        self.services_of: dict[int, tuple[int, int]] = {}
        # The listeners of membership; None if there are none.
        self.membership: Listeners | None = None
        # Meshes of procs that are starting, by the call id that their procs answer, with the present activity of the procs.
        self.starting: dict[int, tuple[MeshInfo, str]] = {}
        self.closed = False
        self.is_shared = False
        # In a client or an agent: the connections to other hosts.
        self.hosts: Hosts | None = None
        self.attachments: list[Attached] = []
        self.creator_bytes: bytes | None = None
        # The directory of the job's log files on this machine.
        self.log_dir = ""
        # In a proc: its own mesh of one, and the mesh in which it was spawned.
        self.proc_info: MeshInfo | None = None
        self.proc_rank = 0
        # In a proc whose `bootstrap` has failed: the error, and its traceback. No actor runs there.
        self.bootstrap_failure: tuple[str, str] | None = None
        self.python_executable: str | None = None
        # The variables that an interpreter reads only when it starts, as they were in the zygote.
        self.start_variables: dict[str, str] = {}
        # In a notebook: the object that writes the lines of procs to the cells.
        self.console: Console | None = None
        # In an interactive shell: the object that shows unhandled failures.
        self.cells: Cells | None = None
        self.owner: Owner = Owner(self, 0, "<root>" if self.is_client else name)

    @property
    def address(self) -> str:
        """The address in the text of identities; opaque."""
        return f"ipc://@monarch-{to_base58(self.agent_uid)}"

    def actor_addr(self, label: str, uid: int) -> ActorAddr:
        proc = f"{'client' if self.is_client else 'proc'}<{to_base58(self.uid)}>"
        return ActorAddr(addr=self.address, proc_name=proc, actor_name=f"{label}<{to_base58(uid)}>" if uid else label)

    def host_in(self, job: int) -> int:
        """The id of this process's host in a job. In the job of another client this process belongs to the client's host."""
        if job in (0, self.job):
            return self.agent_uid
        return self.serves.get(job, job)

    def pid_of(self, proc: int) -> int | None:
        """The pid of a proc, if this process knows it: the client has started all local procs."""
        if proc == self.uid:
            return self.pid
        end = self.native.ended(proc)
        return end.pid if end is not None else dict(self.native.alive_procs()).get(proc)

    def share(self) -> None:
        """Prepares for a handle that is pickled outside a message: the process that unpickles it must find the client of the job."""
        if self.is_client:
            self.native.open_control_socket()
        elif not self.is_shared:
            cell = self.native.cell(FIRST_ERROR, 1, [self.job])
            self.native.request(self.job, OPEN_CONTROL_SOCKET, b"", cell.slot)
            cell.wait()
            self.is_shared = True

    def start_actor(self, actor: RunningActor) -> None:
        from monarch._core.process.actor_thread import ReportingActorThread

        ReportingActorThread(actor).start()

    def start_thread(self, body: Callable[..., Any], *args: Any) -> None:
        start_new_thread(body, args)
