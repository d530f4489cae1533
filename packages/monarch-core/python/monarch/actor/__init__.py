"""Actors on meshes of processes: the public names. Each is loaded on first use, so that importing this module is cheap."""

from __future__ import annotations

from monarch._core.config import wheel as _wheel  # noqa: F401  # pyright: ignore[reportUnusedImport]  # names wheels that are missing
from monarch._core.config.facade import lazy_names as _lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch._core.call.accumulator import Accumulator as Accumulator
    from monarch._core.call.actor import Actor as Actor
    from monarch._core.call.actor import EndpointProperty as EndpointProperty
    from monarch._core.call.actor import NotAnEndpoint as NotAnEndpoint
    from monarch._core.call.actor import concurrent_endpoint as concurrent_endpoint
    from monarch._core.call.actor import endpoint as endpoint
    from monarch._core.call.actor_mesh import ActorMesh as ActorMesh
    from monarch._core.call.as_endpoint import as_endpoint as as_endpoint
    from monarch._core.call.context import Context as Context
    from monarch._core.call.context import Instance as Instance
    from monarch._core.call.context import context as context
    from monarch._core.call.context import current_actor_name as current_actor_name
    from monarch._core.call.context import current_rank as current_rank
    from monarch._core.call.context import current_size as current_size
    from monarch._core.call.context import has_context as has_context
    from monarch._core.call.deadline import deadline as deadline
    from monarch._core.call.deadline import deadline_left as deadline_left
    from monarch._core.call.endpoint import Endpoint as Endpoint
    from monarch._core.call.future import Future as Future
    from monarch._core.call.lazy_future import WouldBlockRuntime as WouldBlockRuntime
    from monarch._core.call.lazy_future import returns_future as returns_future
    from monarch._core.call.partial_values import PartialValues as PartialValues
    from monarch._core.call.per_rank import per_rank as per_rank
    from monarch._core.call.port import Channel as Channel
    from monarch._core.call.port import Port as Port
    from monarch._core.call.port import PortReceiver as PortReceiver
    from monarch._core.call.port import RankedPortReceiver as RankedPortReceiver
    from monarch._core.call.port import UndeliverableMessageEnvelope as UndeliverableMessageEnvelope
    from monarch._core.call.send import send as send
    from monarch._core.call.value_mesh import ValueMesh as ValueMesh
    from monarch._core.config.address import BindSpec as BindSpec
    from monarch._core.config.address import ChannelAddr as ChannelAddr
    from monarch._core.config.address import ChannelTransport as ChannelTransport
    from monarch._core.debug.controller import debug_controller as debug_controller
    from monarch._core.debug.session_info import DebugSessionInfo as DebugSessionInfo
    from monarch._core.errors.errors import ActorError as ActorError
    from monarch._core.errors.errors import AttachError as AttachError
    from monarch._core.errors.errors import AuthenticationError as AuthenticationError
    from monarch._core.errors.errors import DeadlineExceeded as DeadlineExceeded
    from monarch._core.errors.errors import DeliveryError as DeliveryError
    from monarch._core.errors.errors import MonarchError as MonarchError
    from monarch._core.errors.errors import SpawnError as SpawnError
    from monarch._core.errors.errors import SupervisionError as SupervisionError
    from monarch._core.errors.errors import VersionMismatch as VersionMismatch
    from monarch._core.errors.extension import HandleError as HandleError
    from monarch._core.errors.failure import ExitReason as ExitReason
    from monarch._core.errors.failure import MeshFailure as MeshFailure
    from monarch._core.extension.handle_bytes import handle_bytes as handle_bytes
    from monarch._core.extension.handle_bytes import handle_from_bytes as handle_from_bytes
    from monarch._core.hosts.attach import attach_to_workers as attach_to_workers
    from monarch._core.hosts.bootstrap_command import BootstrapCommand as BootstrapCommand
    from monarch._core.hosts.bootstrap_command import default_bootstrap_cmd as default_bootstrap_cmd
    from monarch._core.hosts.configured import hosts_from_config as hosts_from_config
    from monarch._core.hosts.controller import get_or_spawn_controller as get_or_spawn_controller
    from monarch._core.hosts.gateway import attach as attach
    from monarch._core.hosts.here import this_host as this_host
    from monarch._core.hosts.here import this_proc as this_proc
    from monarch._core.hosts.host_mesh import HostMesh as HostMesh
    from monarch._core.hosts.host_mesh import ProcMesh as ProcMesh
    from monarch._core.hosts.spawn import get_active_proc_meshes as get_active_proc_meshes
    from monarch._core.hosts.spawn import register_proc_mesh_spawn_callback as register_proc_mesh_spawn_callback
    from monarch._core.hosts.spawn import unregister_proc_mesh_spawn_callback as unregister_proc_mesh_spawn_callback
    from monarch._core.hosts.transport import enable_transport as enable_transport
    from monarch._core.observe.inspection import dump_state as dump_state
    from monarch._core.observe.tracing import get_meter as get_meter
    from monarch._core.observe.tracing import span as span
    from monarch._core.observe.tracing import traced as traced
    from monarch._core.pickle.buffer import Buffer as Buffer
    from monarch._core.pickle.buffer import FrozenBuffer as FrozenBuffer
    from monarch._core.process.identity import ActorAddr as ActorAddr
    from monarch._core.process.identity import ProcId as ProcId
    from monarch._core.process.identity import Uid as Uid
    from monarch._core.process.root_fault import unhandled_fault_hook as unhandled_fault_hook
    from monarch._core.shape.mesh import MeshTrait as MeshTrait
    from monarch._core.shape.shape import Extent as Extent
    from monarch._core.shape.shape import Point as Point
    from monarch._core.shape.shape import Region as Region
    from monarch._core.shape.shape import Shape as Shape
    from monarch._core.shape.slice import NDSlice as NDSlice
    from monarch._core.shape.slice import Slice as Slice
    from monarch._core.start.shutdown import shutdown_context as shutdown_context
    from monarch._core.start.worker import run_worker_loop_forever as run_worker_loop_forever
    from monarch._core.start.worker import run_worker_loop_until_shutdown as run_worker_loop_until_shutdown
    from monarch._core.start.worker import start_worker_loop_forever as start_worker_loop_forever
    from monarch._core.sync.workspace import Workspace as Workspace
    from monarch.actor import config as config

# Where each name is implemented: generated from the imports above by `python -m tools.generate_docs --write`.
_HOMES = {
    "call.accumulator": ("Accumulator",),
    "call.actor": ("Actor", "EndpointProperty", "NotAnEndpoint", "concurrent_endpoint", "endpoint"),
    "call.actor_mesh": ("ActorMesh",),
    "call.as_endpoint": ("as_endpoint",),
    "call.context": ("Context", "Instance", "context", "current_actor_name", "current_rank", "current_size", "has_context"),
    "call.deadline": ("deadline", "deadline_left"),
    "call.endpoint": ("Endpoint",),
    "call.future": ("Future",),
    "call.lazy_future": ("WouldBlockRuntime", "returns_future"),
    "call.partial_values": ("PartialValues",),
    "call.per_rank": ("per_rank",),
    "call.port": ("Channel", "Port", "PortReceiver", "RankedPortReceiver", "UndeliverableMessageEnvelope"),
    "call.send": ("send",),
    "call.value_mesh": ("ValueMesh",),
    "config.address": ("BindSpec", "ChannelAddr", "ChannelTransport"),
    "debug.controller": ("debug_controller",),
    "debug.session_info": ("DebugSessionInfo",),
    "errors.errors": (
        "ActorError",
        "AttachError",
        "AuthenticationError",
        "DeadlineExceeded",
        "DeliveryError",
        "MonarchError",
        "SpawnError",
        "SupervisionError",
        "VersionMismatch",
    ),
    "errors.extension": ("HandleError",),
    "errors.failure": ("ExitReason", "MeshFailure"),
    "extension.handle_bytes": ("handle_bytes", "handle_from_bytes"),
    "hosts.attach": ("attach_to_workers",),
    "hosts.bootstrap_command": ("BootstrapCommand", "default_bootstrap_cmd"),
    "hosts.configured": ("hosts_from_config",),
    "hosts.controller": ("get_or_spawn_controller",),
    "hosts.gateway": ("attach",),
    "hosts.here": ("this_host", "this_proc"),
    "hosts.host_mesh": ("HostMesh", "ProcMesh"),
    "hosts.spawn": ("get_active_proc_meshes", "register_proc_mesh_spawn_callback", "unregister_proc_mesh_spawn_callback"),
    "hosts.transport": ("enable_transport",),
    "observe.inspection": ("dump_state",),
    "observe.tracing": ("get_meter", "span", "traced"),
    "pickle.buffer": ("Buffer", "FrozenBuffer"),
    "process.identity": ("ActorAddr", "ProcId", "Uid"),
    "process.root_fault": ("unhandled_fault_hook",),
    "shape.mesh": ("MeshTrait",),
    "shape.shape": ("Extent", "Point", "Region", "Shape"),
    "shape.slice": ("NDSlice", "Slice"),
    "start.shutdown": ("shutdown_context",),
    "start.worker": ("run_worker_loop_forever", "run_worker_loop_until_shutdown", "start_worker_loop_forever"),
    "sync.workspace": ("Workspace",),
}
# End of the generated table.

if not TYPE_CHECKING:  # type checkers go by the imports above
    __all__, __getattr__, __dir__ = _lazy_names(
        __name__, _HOMES, "monarch._core", modules=["config"], hidden=["concurrent", "recovery", "testing"]
    )
