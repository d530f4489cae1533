"""The Python side of a process of a job, the client or a proc, beside its native node: a table of its components.

The components know each other by narrow types; the classes of those that higher layers implement are described in `parts.py`.
"""

from __future__ import annotations

import os

from monarch._core._native import Process as NativeProcess
from monarch._core._native import provide_bulk_choice, provide_delivery_error
from monarch._core.errors.errors import DeliveryError
from monarch._core.process.actor_table import ActorTable
from monarch._core.process.control_socket import ControlSocket
from monarch._core.process.display import Display
from monarch._core.process.execution import Execution
from monarch._core.process.host_connections import HostConnections
from monarch._core.process.mesh_table import MeshTable
from monarch._core.process.owner import Owner
from monarch._core.process.peer_table import PeerTable
from monarch._core.process.place import Place
from monarch._core.process.provided import provided

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from monarch._core.process.mesh_info import MeshInfo
    from monarch._core.process.parts import Listeners

# Requests between housekeeping threads that native code does not handle.
CONTROLLER, PING, LOG_LEVEL, WATCH_STOP = 3, 4, 5, 6
AGGREGATE, MISSING = 20, 21
# The query for the event rings of this host.
RECORDINGS = 22
# Requests of the test kit.
FAULT, DELAY = 30, 31
# The notice that code has been mirrored, or must be reloaded.
WORKSPACE = 50
# Requests of other wheels, by name; and queries whether the agent knows a process, and in which job it knows a host.
NAMED, KNOWN, BESIDE = 60, 61, 62


provide_delivery_error(DeliveryError)
provide_bulk_choice(lambda: provided.choose_bulk_transport())


class LocalProcess:
    """The process of this interpreter, or a simulated one."""

    def __init__(self, native: NativeProcess, host: str, name: str, execution: Execution | None = None) -> None:
        self.native = native
        # The identity: ids of the process and of the agent of its host, and names.
        self.uid: int = native.uid
        self.agent_uid: int = native.agent_uid
        self.is_client = native.agent_uid == native.uid
        self.host = host
        self.name = name
        self.pid = os.getpid()
        self.execution = execution or Execution()
        self.actors = ActorTable()
        self.meshes = MeshTable(native.supervision)
        self.peers = PeerTable(native)
        self.hosts = HostConnections(native)
        self.place = Place()
        self.display = Display()
        self.control_socket = ControlSocket(native)
        # The owner of meshes that no actor owns.
        self.owner: Owner = Owner(self, 0, "<root>" if self.is_client else name)
        # In the client: the controllers of the job, by name (`hosts/controller.py`).
        self.controllers: dict[str, Any] = {}
        # The listeners of membership; None if there are none.
        self.membership: Listeners | None = None
        # The reports of other wheels with the stacks of this process, by their names (`extension/reports.py`).
        self.reports: dict[str, Callable[[], object]] = {}
        # Meshes of procs that are starting, by the call id that their procs answer, with the present activity of the procs.
        self.starting: dict[int, tuple[MeshInfo, str]] = {}
        # This process as the creator of meshes, pickled (`call/current_actor.py`).
        self.creator_bytes: bytes | None = None
        # The stop of the process has begun.
        self.closed = False
