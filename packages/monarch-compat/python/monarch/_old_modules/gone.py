"""The names of torchmonarch 0.7 without a home here: what each was, and what to write instead.

What always holds: no row names an object that exists in `homes`; each row is one line of an error and one row of docs/migration.md.
"""

from __future__ import annotations

_LAUNCH = "it started jobs on a scheduler that only its authors have; write a job of monarch.job, for example SlurmJob"
_MESSAGES = "it was a message or an object of the native runtime; write a Channel, a Port or an endpoint of monarch.actor"
_ENGINE = "it was part of the engine of mesh tensors; write the public functions of monarch.tensor"
_PICKLE = "it was part of the pickler; write dumps, loads and register of monarch.extension.pickling"
_DEBUGGER = "it was part of the debugger; write debug_controller of monarch.actor, or `monarch debug`"
_PROFILER = "it ran the profiler of PyTorch on the workers; write `monarch profile`, or torch.profiler in a remote function"

# Advice for single names, by module.
NAMES: dict[str, dict[str, str]] = {
    "monarch": {
        "Selection": "it selected ranks in messages; slice the mesh, for example mesh.slice(gpus=0)",
        "mast_reserve": _LAUNCH,
        "world_mesh": "it made the mesh of a fixed world; write this_host().spawn_procs(...) of monarch.actor and activate the mesh",
    },
    "monarch.fetch": {},
    "monarch.gradient_generator": {"GradGenerator": "it was the iterator behind grad_generator; write grad_generator of monarch.tensor"},
    "monarch.timer": {"get_latest_timer_measurement": "write get_execution_timer_latency_ms of monarch.tensor.timer"},
    "monarch.timer.execution_timer": {"get_latest_timer_measurement": "write get_execution_timer_latency_ms of monarch.tensor.timer"},
    "monarch._src.actor.actor_mesh": {
        "_Actor": "it ran the mailbox of an actor in its process; subclass Actor of monarch.actor",
        "_client_context": "it held the client of the process; write context() of monarch.actor",
        "RootClientActor": "it was the actor of the client; write context() of monarch.actor",
    },
    "monarch._src.actor.host_mesh": {"_spawn_admin": "it started the admin server; write `monarch ps`, or start of monarch.telemetry"},
    "monarch._src.actor.proc_mesh": {
        "SetupActor": "it ran a function in new processes; write spawn_procs(..., bootstrap=function)",
        "_get_bootstrap_args": "it made a proc's command; write default_bootstrap_cmd of monarch.actor",
    },
    "monarch._src.actor.pickle": dict.fromkeys(("torch_dump", "torch_loads", "_Unpickler"), _PICKLE),
    "monarch._src.actor.telemetry": {
        "METER": "write get_meter of monarch.actor",
        "get_monarch_tracer": "write span of monarch.actor",
    },
    "monarch._src.actor.bootstrap": dict.fromkeys(
        ("CA", "PrivateKey"), "it was a type of an argument; write a string or a path for ca, and a string for key"
    ),
    "monarch._rust_bindings.monarch_hyperactor.mailbox": dict.fromkeys(
        ("Mailbox", "OncePortHandle", "OncePortReceiver", "OncePortRef", "PortHandle", "PortId", "PortRef"), _MESSAGES
    ),
    "monarch._rust_bindings.monarch_hyperactor.actor": dict.fromkeys(("PythonMessage", "PythonMessageKind", "MethodSpecifier"), _MESSAGES),
    "monarch._rust_bindings.monarch_hyperactor.proc": dict.fromkeys(("Proc", "Serialized", "init_proc"), _MESSAGES),
    "monarch._src.spmd.host_mesh": {
        "host_mesh_from_store": "write StoreJob.from_store(store) of monarch.job.spmd: the hosts are state().hosts on global rank 0",
    },
    "monarch.tools.commands": dict.fromkeys(
        ("create", "debug", "get_or_create", "info", "kill", "server_ready", "torchx_runner"),
        "it drove TorchX; write TorchXJob of monarch.job.torchx, or `monarch apply`, `monarch status`, `monarch kill`",
    ),
    "monarch.tools.config": {"Config": "it configured a TorchX application; write the arguments of TorchXJob of monarch.job.torchx"},
    "monarch.tools.network": {"get_sockaddr": "write get_ipaddr of monarch.spmd, and join address and port"},
}
# Advice for whole modules: the longest prefix counts.
MODULES: dict[str, str] = {
    "monarch._rust_bindings": _MESSAGES,
    "monarch._src": "it was private to torchmonarch; the public names are in monarch.actor, monarch.job, monarch.spmd and monarch.rdma",
    "monarch._src.actor.debugger": _DEBUGGER,
    "monarch._src.actor.code_sync": "it copied code to hosts; write HostMesh.sync_workspace of monarch.actor",
    "monarch._src.actor.proc_launcher": "it started procs; write BootstrapCommand of monarch.actor for a command of your own",
    "monarch._src.job.meta": _LAUNCH,
    "monarch.cached_remote_function": _ENGINE,
    "monarch.common": _ENGINE,
    "monarch.common.mast": _LAUNCH,
    "monarch.common.selection": "it selected ranks in messages; slice the mesh, for example mesh.slice(gpus=0)",
    "monarch.controller": _ENGINE,
    "monarch.job.meta": _LAUNCH,
    "monarch.memory": "it took snapshots of GPU memory; call torch.cuda.memory in a remote function of monarch.tensor",
    "monarch.mesh_controller": _ENGINE,
    "monarch.monarch_dashboard": "the dashboard is part of monarch.telemetry: write `monarch dashboard`",
    "monarch.notebook": f"{_LAUNCH}; in a notebook use this_host() of monarch.actor",
    "monarch.parallel": _ENGINE,
    "monarch.profiler": _PROFILER,
    "monarch.python_local_mesh": "it made a mesh of local workers; write this_host().spawn_procs(...) of monarch.actor",
    "monarch.remote_class": "it kept objects on workers; write OpaqueObject of monarch.tensor",
    "monarch.rust_backend_mesh": "it made a mesh of workers; write spawn_procs of a HostMesh of monarch.actor",
    "monarch.safe_torch": "it loaded torch late; import torch where it is used",
    "monarch.simulator": "it was part of the simulator; write Simulator of monarch.tensor",
    "monarch.tensorboard": "it wrote summaries from workers; write torch.utils.tensorboard in a remote function of monarch.tensor",
    "monarch.timer": "it was an example of the timer; write the functions of monarch.tensor.timer",
    "monarch.tools": "it was part of the command line; write `monarch --help`, or the jobs of monarch.job",
    "monarch.worker": _ENGINE,
    "monarch.world_mesh": "it made the mesh of a fixed world; write this_host().spawn_procs(...) of monarch.actor",
}


def module_advice(name: str) -> str | None:
    """What to write instead of a module without a home; None for a module that torchmonarch 0.7 did not have, as far as is known."""
    while name != "monarch":
        if name in MODULES:
            return MODULES[name]
        name = name.rpartition(".")[0]
    return None


def advice(module: str, name: str) -> str | None:
    """What to write instead of `module.name`; None if nothing is known of it."""
    found = NAMES.get(module, {}).get(name) or MODULES.get(f"{module}.{name}")
    if found is None and module != "monarch" and not name.startswith("__"):
        found = module_advice(module)
    return found
