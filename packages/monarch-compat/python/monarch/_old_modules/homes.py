"""The homes of the names of torchmonarch 0.7: for each old module the public names of this project that its names are aliases of.

A row is `PLACE: NAME NAME ...`, rows are separated by `;`. PLACE is a module below `monarch`; `old=new` is a name that is another one here;
`.=` is the whole module PLACE for the old module's unlisted names; `old=.` is the module PLACE itself. What always holds: each row resolves
where the wheels are installed (a test imports all of them), and docs/migration.md has all of them.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_CONFIG = "config: clear_runtime_config configure configured get_global_config get_runtime_config"
_SHAPE = "actor: Extent NDSlice Shape Slice Point Region MeshTrait"
_CALLS = (
    "actor: Accumulator Actor ActorError ActorMesh Channel Context Endpoint EndpointProperty Extent Future Instance NotAnEndpoint Point"
    " Port PortReceiver RankedPortReceiver ValueMesh as_endpoint attach concurrent_endpoint context current_actor_name current_rank"
    " current_size enable_transport endpoint returns_future send shutdown_context"
)
_RDMA = (
    "rdma: RDMAAction RDMABuffer RDMAReadTransferWarning RDMATcpFallbackWarning RDMAWriteTransferWarning get_rdma_backend"
    " is_ibverbs_available is_rdma_available"
)
_WORKERS = "actor: attach_to_workers run_worker_loop_forever run_worker_loop_until_shutdown start_worker_loop_forever"
_SERVICE = (
    "job: SERVICE_PROC_IDS_ENV SERVICE_PROC_RANK_ENV deserialize_service_proc_ids new_service_proc_id ranked_service_proc_id_from_env"
    " serialize_service_proc_ids service_proc_addr service_proc_addrs"
)
_DEVICE_MESH = "tensor: DeviceMesh RemoteProcessGroup get_active_mesh no_mesh slice_mesh to_mesh"
_TIMER = (
    "tensor.timer: ExecutionTimer execution_timer_start execution_timer_stop get_execution_timer_average_ms get_execution_timer_summary"
)
_PROCS = (
    "actor: ProcMesh get_active_proc_meshes get_or_spawn_controller register_proc_mesh_spawn_callback unregister_proc_mesh_spawn_callback"
)

MODULES: dict[str, str] = {
    "monarch": f"{_CONFIG}; actor: Extent NDSlice Shape Future ActorFuture=Future ProcMesh HostMesh;"
    " tensor: DeviceMesh OpaqueModule OpaqueObject OpaqueRef RemoteProcessGroup Simulator Stream Tensor call_on_shard_and_fetch coalescing"
    " fetch_shard function_resolvers get_active_mesh get_active_stream grad_function grad_generator inspect no_mesh opaque_method reduce"
    " reduce_ remote set_meta show slice_mesh to_mesh; tensor.builtins: builtins=.; tensor.random: random=.; tensor.timer: timer=.",
    "monarch.actor_mesh": _CALLS,
    "monarch.proc_mesh": _PROCS,
    "monarch.host_mesh": "actor: HostMesh this_host this_proc",
    "monarch.actor_error": "actor: ActorError MeshFailure SupervisionError",
    "monarch.future": "actor: ActorFuture=Future Future",
    "monarch.fetch": "tensor: call_on_shard_and_fetch fetch_shard inspect no_mesh show; actor: Future",
    "monarch.gradient": "tensor: GradientGenerator=grad_generator",
    "monarch.gradient_generator": "tensor: grad_function grad_generator",
    "monarch.timer": _TIMER,
    "monarch.timer.execution_timer": _TIMER,
    "monarch.random": "tensor.random: .=",
    "monarch.builtins": "tensor.builtins: .=",
    "monarch.builtins.log": "tensor.builtins: .=",
    "monarch.builtins.random": "tensor.builtins: .=",
    "monarch.opaque_module": "tensor: OpaqueModule OpaqueObject OpaqueRef",
    "monarch.opaque_object": "tensor: OpaqueObject OpaqueRef opaque_method",
    "monarch.stream": "tensor: Stream get_active_stream",
    "monarch.simulator": "tensor.simulator: .=",
    "monarch.simulator.config": "tensor: set_meta",
    "monarch.simulator.interface": "tensor: Simulator",
    "monarch.simulator.simulator": "tensor: Simulator",
    "monarch.parallel": "tensor.pipelining: pipelining=.",
    "monarch.parallel.pipelining": "tensor.pipelining: PipelineParallelism",
    "monarch.parallel.pipelining.runtime": "tensor.pipelining: PipelineParallelism",
    "monarch.tensor_engine": "",
    "monarch.common": "",
    "monarch.common._coalescing": "tensor: coalescing compile",
    "monarch.common.device_mesh": _DEVICE_MESH,
    "monarch.common.function": "tensor: resolvers=function_resolvers",
    "monarch.common.future": "actor: Future",
    "monarch.common.invocation": "tensor: RemoteException",
    "monarch.common.opaque_ref": "tensor: OpaqueRef",
    "monarch.common.remote": "tensor: Remote call_on_shard_and_fetch remote",
    "monarch.common.stream": "tensor: Stream get_active_stream",
    "monarch.common.tensor": "tensor: MeshSliceTensor Tensor reduce reduce_",
    "monarch.distributed_telemetry.engine": "telemetry: QueryEngine",
    "monarch.remotemount.remotemount": "remotemount: MountHandler remotemount",
    "monarch.utils": "spmd: AddrType get_ipaddr setup_env_for_distributed=setup_torch_elastic_env_async",
    "monarch.tools": "",
    "monarch.tools.network": "spmd: AddrType get_ipaddr",
    "monarch.tools.commands": "job: DEFAULT_JOB_PATH load_current_job",
    "monarch.tools.cli": "extension.cli: main",
    "monarch.tools.config": "actor: Workspace",
    "monarch.tools.config.workspace": "actor: Workspace",
    "monarch._src": "",
    "monarch._src.actor": "config: configure",
    "monarch._src.actor.actor_mesh": f"{_CALLS} ActorAddr BindSpec ChannelTransport FrozenBuffer MeshFailure MeshTrait NDSlice ProcMesh"
    " Shape UndeliverableMessageEnvelope WouldBlockRuntime config; config: configure; _old_modules.context_variable: _context=variable",
    "monarch._src.actor.allocator": "",
    "monarch._src.actor.bootstrap": f"{_WORKERS}; actor: Extent Future HostMesh WouldBlockRuntime",
    "monarch._src.actor.concurrent": "actor: concurrent_endpoint",
    "monarch._src.actor.debugger": "",
    "monarch._src.actor.debugger.debug_controller": "actor: debug_controller",
    "monarch._src.actor.debugger.debug_session": "actor: DebugSessionInfo",
    "monarch._src.actor.endpoint": "actor: Endpoint EndpointProperty NotAnEndpoint endpoint Extent Future ValueMesh ActorMesh Port",
    "monarch._src.actor.future": "actor: Future WouldBlockRuntime",
    "monarch._src.actor.host_mesh": "actor: BootstrapCommand HostMesh ProcMesh default_bootstrap_cmd this_host this_proc",
    "monarch._src.actor.logging": "",
    "monarch._src.actor.mock": "actor.testing: get_actor_class get_actor_mock_registry_state get_tensor_engine_factory"
    " get_tensor_engine_mock_registry_state patch_actor patch_tensor_engine set_actor_mock_registry_state"
    " set_tensor_engine_mock_registry_state",
    "monarch._src.actor.pickle": "actor: Buffer FrozenBuffer; extension.pickling: flatten unflatten;"
    " _old_modules.dispatch_table: _Pickler=Pickler _TorchPickler=Pickler _ensure_torch_pickle=ensure_torch_pickle",
    "monarch._src.actor.proc_mesh": f"{_PROCS} ActorMesh HostMesh",
    "monarch._src.actor.returns_future": "actor: returns_future",
    "monarch._src.actor.shape": _SHAPE,
    "monarch._src.actor.supervision": "actor: MeshFailure SupervisionError unhandled_fault_hook",
    "monarch._src.actor.telemetry": "actor: get_meter span traced; _old_modules.tracing_forwarder: TracingForwarder",
    "monarch._src.gather_mount": "gather_mount: gather_mount",
    "monarch._src.gather_mount.gather_mount": "gather_mount: GatherMount gather_mount",
    "monarch._src.job": "",
    "monarch._src.job.host_mesh": "job: hosts_from_config",
    "monarch._src.job.job": "job: BatchJob DEFAULT_JOB_PATH JobState JobTrait LocalJob LoginJob MeshAdminConfig SSHJob TelemetryConfig"
    " exec_command job_load job_loads load_current_job set_current_job",
    "monarch._src.job.job_state": "job: JobState",
    "monarch._src.job.kubernetes": "job.kubernetes: ImageSpec KubeConfig KubernetesJob;"
    " _old_modules.worker_program: _WORKER_BOOTSTRAP_SCRIPT=PROGRAM",
    "monarch._src.job.port_forward": "job: PortForwarder",
    "monarch._src.job.process": "job: ProcessJob",
    "monarch._src.job.service_identity": _SERVICE,
    "monarch._src.job.shell": "job: shell",
    "monarch._src.job.slurm": "job: SlurmJob",
    "monarch._src.job.spmd": "job.spmd: SPMDJob StoreJob job_load serve",
    "monarch._src.job.telemetry_config": "job: TelemetryConfig; telemetry: Telemetry",
    "monarch._src.job._telemetry_query_client": "telemetry: QueryEngineClient",
    "monarch._src.rdma": _RDMA,
    "monarch._src.rdma.rdma": _RDMA,
    "monarch._src.spmd": "spmd: setup_torch_elastic_env setup_torch_elastic_env_async SPMDActor",
    "monarch._src.spmd.actor": "spmd: SPMDActor",
    "monarch._src.spmd.host_mesh": "",
    "monarch._src.tensor_engine": "",
    "monarch._src.tools": "",
    "monarch._src.tools.commands": "job: DEFAULT_JOB_PATH load_current_job",
    "monarch._rust_bindings": "",
    "monarch._rust_bindings.monarch_distributed_telemetry": "",
    "monarch._rust_bindings.monarch_distributed_telemetry.query_engine": "telemetry: QueryEngine",
    "monarch._rust_bindings.monarch_hyperactor": "",
    "monarch._rust_bindings.monarch_hyperactor.actor": "actor: ActorAddr Buffer FrozenBuffer MeshFailure UndeliverableMessageEnvelope",
    "monarch._rust_bindings.monarch_hyperactor.bootstrap": "actor: attach_to_workers start_worker_loop_forever",
    "monarch._rust_bindings.monarch_hyperactor.buffers": "actor: Buffer FrozenBuffer",
    "monarch._rust_bindings.monarch_hyperactor.channel": "actor: BindSpec ChannelAddr ChannelTransport",
    "monarch._rust_bindings.monarch_hyperactor.config": "config: Encoding clear_runtime_config configure get_global_config"
    " get_runtime_config reload_config_from_env reset_config_to_defaults; actor: ChannelTransport",
    "monarch._rust_bindings.monarch_hyperactor.context": "actor: Instance",
    "monarch._rust_bindings.monarch_hyperactor.host_mesh": "actor: BootstrapCommand HostMesh",
    "monarch._rust_bindings.monarch_hyperactor.mailbox": "actor: PortReceiver UndeliverableMessageEnvelope",
    "monarch._rust_bindings.monarch_hyperactor.proc": "actor: ActorAddr ProcId Uid",
    "monarch._rust_bindings.monarch_hyperactor.proc_mesh": "actor: ProcMesh",
    "monarch._rust_bindings.monarch_hyperactor.shape": "actor: Extent Point Region Shape Slice",
    "monarch._rust_bindings.monarch_hyperactor.supervision": "actor: MeshFailure SupervisionError",
    "monarch._rust_bindings.monarch_hyperactor.value_mesh": "actor: ValueMesh",
    "monarch._rust_bindings.rdma": "rdma: RdmaInitError is_ibverbs_available rdma_supported=is_rdma_available",
}
# Modules that are programs as well (`python -m MODULE`), by the file in this folder.
SOURCES = {"monarch._src.actor.bootstrap_main": "bootstrap_main.py", "monarch.bootstrap_main": "bootstrap_main.py"}
# The parsed rows of the modules that were asked for.
_rows: dict[str, dict[str, tuple[str, str]]] = {}


# The advice for the objects of this package, which stand for private objects of torchmonarch 0.7.
INSTEAD = {
    "monarch._old_modules.context_variable": "has_context() and context() of monarch.actor",
    "monarch._old_modules.dispatch_table": "register, dumps and loads of monarch.extension.pickling",
    "monarch._old_modules.tracing_forwarder": "nothing: telemetry has the records of logging without a handler",
    "monarch._old_modules.worker_program": "`monarch worker`, or leave the command of the container out",
}


def rows(module: str) -> dict[str, tuple[str, str]]:
    """Place and name of each old name; the name "" is the place itself, the old name "." every other name of the place."""
    if module in _rows:
        return _rows[module]
    found: dict[str, tuple[str, str]] = {}
    for row in filter(None, MODULES.get(module, "").split(";")):
        place, _, listed = row.partition(":")
        for item in listed.split():
            old, _, new = item.partition("=")
            found[old] = (f"monarch.{place.strip()}", "" if new == "." else new or ("" if old == "." else old))
    _rows[module] = found
    return found


def names(module: str) -> Iterable[str]:
    """The listed old names of a module."""
    return [name for name in rows(module) if name != "."]


def home(module: str, name: str) -> tuple[str, str] | None:
    """Module and name of the public object for `module.name`; the name is "" for a module; None if there is no home."""
    found = rows(module)
    if name in found:
        return found[name]
    return (found["."][0], name) if "." in found and not name.startswith("_") else None


def is_module(name: str) -> bool:
    """Whether torchmonarch 0.7 had this module and names of it have homes."""
    return name in MODULES and name != "monarch"
