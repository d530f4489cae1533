"""A process of a job, the client or a proc, as Python knows it: what lives in it, beside its native node."""

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
    from monarch._core.actor.local_actor import LocalActor
    from monarch._core.call.actor_mesh import ActorMesh
    from monarch._core.call.mesh_info import MeshInfo
    from monarch._core.extension.listening import Members
    from monarch._core.hosts.attachment import Attachment
    from monarch._core.observe.cells import Cells
    from monarch._core.observe.notebook import Console
    from monarch._core.supervise.supervision import OwnedMesh
    from monarch._core.testing.universe import Universe

# Requests between housekeeping threads that the native side does not know.
CONTROLLER, PING, LOG_LEVEL, WATCH_STOP, OPEN_DOOR = 3, 4, 5, 6, 7
AGGREGATE, MISSING = 20, 21
# Who records events on this host.
RECORDINGS = 22
# Of the test kit.
FAULT, DELAY = 30, 31
# Code has been mirrored, or is to be reloaded.
WORKSPACE = 50
# Of other wheels, by name; whether the agent knows a process, or in which job it knows a host.
NAMED, KNOWN, BESIDE = 60, 61, 62


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
        self.supervision = native.supervision
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
        self.ended = ProcEnds(native)
        # The last ones that failed and are not owned any more.
        self.failed_meshes: list[MeshInfo] = []
        # Owners of meshes that this process refers to.
        self.watched: set[int] = set()
        # Processes that other wheels have said to be on other hosts.
        self.reached: set[int] = set()
        # Of a service: what its host is called in the jobs that it serves. And for processes that use one: the host of the service, and its
        # job as they know them, by the job of its agent.
        self.serves: dict[int, int] = {}
        self.services_of: dict[int, tuple[int, int]] = {}
        # Who listens to joins and ends of members; None where nobody does.
        self.membership: Members | None = None
        # Meshes of procs that are to be ready, by the slot that they answer, and what their procs do meanwhile.
        self.starting: dict[int, tuple[MeshInfo, str]] = {}
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
        self.owner: Owner = Owner(self, 0, "<root>" if self.is_client else name)

    @property
    def address(self) -> str:
        """The address that identities show; opaque."""
        return f"ipc://@monarch-{to_base58(self.agent_uid)}"

    def actor_addr(self, label: str, uid: int) -> ActorAddr:
        proc = f"{'client' if self.is_client else 'proc'}<{to_base58(self.uid)}>"
        return ActorAddr(addr=self.address, proc_name=proc, actor_name=f"{label}<{to_base58(uid)}>" if uid else label)

    def host_in(self, job: int) -> int:
        """What the host of this process is called in a job; in that of another client this process belongs to the client's host."""
        if job in (0, self.job):
            return self.agent_uid
        return self.serves.get(job, job)

    def pid_of(self, proc: int) -> int | None:
        """Of a proc, as far as this process knows it: the client has started all of them."""
        if proc == self.uid:
            return self.pid
        end = self.native.ended(proc)
        return end.pid if end is not None else dict(self.native.alive_procs()).get(proc)

    def share(self) -> None:
        """A handle is being pickled outside a message: the process that unpickles it must find the client of the job."""
        if self.is_client:
            self.native.open_door()
        elif not self.is_shared:
            cell = self.native.cell(FIRST_ERROR, 1, [self.job])
            self.native.request(self.job, OPEN_DOOR, b"", cell.slot)
            cell.wait()
            self.is_shared = True

    def start_actor(self, actor: LocalActor) -> None:
        from monarch._core.process.actor_thread import ReportingActorThread

        ReportingActorThread(actor).start()

    def start_thread(self, body: Callable[..., Any], *args: Any) -> None:
        start_new_thread(body, args)
