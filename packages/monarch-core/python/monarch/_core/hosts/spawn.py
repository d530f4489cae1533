"""Spawning processes: the caller's options are encoded once and sent to the agents, which start the processes."""

from __future__ import annotations

import marshal
import os
import sys

from monarch._core._native.protocol import FIRST_ERROR, GATHER
from monarch._core.call.owner import spawning_owner
from monarch._core.call.received_mesh import reach
from monarch._core.call.runs import each_of
from monarch._core.config import config
from monarch._core.hosts.host_mesh import HostMesh, ProcMesh
from monarch._core.hosts.host_set import HostSet, host_extent
from monarch._core.hosts.preload import Preload, request, wanted_modules
from monarch._core.hosts.proc_set import ProcSet
from monarch._core.hosts.slow_spawn import watch
from monarch._core.process.current import current_process, simulated_process
from monarch._core.process.environment import changed, is_start_variable, start_variables
from monarch._core.process.identity import checked_name, new_uid
from monarch._core.process.loaded import loaded_module
from monarch._core.process.log_directory import directory_below, log_root, output_file
from monarch._core.process.mesh_info import MeshInfo
from monarch._core.process.runtime_log import procs_spawned
from monarch._core.shape.shape import Point, whole_shape
from monarch._core.supervise.supervision import OwnedMesh

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from monarch._core.hosts.bootstrap_command import BootstrapCommand
    from monarch._core.hosts.proc_setup import Wire

_BIND_KEYS = frozenset({"cpunodebind", "membind", "physcpubind", "cpus"})

# The command of a proc that is forked from an interpreter with modules.
_NO_COMMAND: tuple[list[str], str | None, bool, Any, str] = ([], None, True, {}, "")

_spawn_callbacks: list[Callable[[ProcMesh], Any]] = []
_active: list[Any] = []


def spawn_procs(
    mesh: HostMesh,
    per_host: dict[str, int],
    bootstrap: Callable[[], Any] | None,
    name: str,
    proc_bind: list[dict[str, str]] | None,
    bootstrap_command: BootstrapCommand | Callable[[Point], BootstrapCommand] | None,
    preload: Sequence[str] | Preload | None = None,
    replica: int = 0,
) -> ProcMesh:
    """Spawns the processes. `replica`: the index among meshes like this one, for the rank prefixes of output lines."""
    checked_name(name)
    modules = wanted_modules(preload, lambda: mesh.preload, bootstrap_command is not None)
    hosts = mesh.__core__
    extent = host_extent(hosts, per_host)
    each = 1
    for size in per_host.values():
        each *= size
    count = each * len(mesh)
    binds = _checked_binds(proc_bind, each)
    process = current_process()
    hooks = _contributed(process, name, count)
    changes = {} if hooks is None else hooks[4]
    owner = spawning_owner()
    procs = tuple(new_uid() for _ in range(count))
    agents = hosts.agent_ids()
    where = tuple((agent, each) for agent in agents)
    job = hosts.job or process.peers.job
    info = MeshInfo(new_uid(), name, owner.display, extent, procs, agents=where, job=job)
    reach(process, job, [(agent, agent) for agent in agents] + list(zip(procs, each_of(where), strict=True)))
    # Without user code each proc starts or fails in time, so the call gathers all answers. User code may make a proc wait for another one.
    ready = process.native.cell(GATHER if bootstrap is None else FIRST_ERROR, count, list(procs), info.uid)
    ready.limit(True)
    setups = {
        elsewhere: _setup(process, hosts, info, bootstrap, ready.slot, elsewhere, hooks)
        for elsewhere in {a != process.agent_uid for a in agents}
    }
    limit = config.spawn_ready_seconds()
    prefix = config.value("prefix_with_rank")
    capture = config.value("enable_file_capture")
    root = log_root()
    plans: list[list[tuple[int, bytes, bool, int, str, str, str]]] = [[] for _ in agents]
    commands: list[str] = []
    known: dict[int, tuple[list[str], str | None, bool, Any, str] | None] = {}
    for rank, uid in enumerate(procs):
        agent = agents[rank // each]
        elsewhere = agent != process.agent_uid
        bind = binds[rank % each] if binds else None
        setup = marshal.dumps((setups[elsewhere], rank, uid, bind, agent))
        given = bootstrap_command(Point(rank, extent)) if callable(bootstrap_command) else bootstrap_command
        key = id(given) + elsewhere if given is bootstrap_command and (given is not None or bind is None) else -1 - rank
        command = known[key] if key in known else known.setdefault(key, _command(process, hosts, given, bind, elsewhere, changes))
        commands.append(sys.executable if command is None else command[4])
        if modules and not (bind and "membind" in bind):
            setup = _with_modules(modules, hosts, command, elsewhere, changes, setup)
            command = command or _NO_COMMAND
        elif command is not None:
            argv, program, inherit, env, _ = command
            setup = marshal.dumps((argv, program, inherit, env, None if elsewhere else _cwd(), setup))
        shown_rank = f"[{replica * count + rank}] " if prefix else ""
        file = output_file(info.unique_name, rank) if capture else ""
        if file and elsewhere and root:
            # The path is absolute: the spawner's choice has precedence over that of the other host's agent.
            file = os.path.join(directory_below(root, agent), file)
        plans[rank // each].append((uid, setup, command is not None, int((limit or 0) * 1000), shown_rank, info.display(rank), file))
    owned = OwnedMesh(process, owner, info, False)
    process.meshes.known[info.uid] = info
    info.made(hosts.number(), hosts.shape)
    procs_spawned(info)
    for agent, asked in zip(agents, plans, strict=True):
        process.native.spawn_procs(agent if agent != process.agent_uid else 0, asked)
    watch(process, info, ready.slot, bootstrap, next((found[4] for found in known.values() if found is not None), ""))
    if process.membership is not None:
        process.membership.spawned(info)
    spawned = ProcMesh(ProcSet(info, whole_shape(extent), hosts.state(), owned, (ready, commands)))
    hosts.spawned.add(owned)
    _remember(spawned)
    for callback in list(_spawn_callbacks):
        callback(spawned)
    return spawned


def _checked_binds(proc_bind: list[dict[str, str]] | None, each: int) -> list[dict[str, str]] | None:
    if proc_bind is None:
        return None
    if len(proc_bind) != each:
        raise ValueError(f"proc_bind length ({len(proc_bind)}) must equal procs_per_host ({each})")
    from monarch._core.process.cpu_binding import parse_cpus

    for bind in proc_bind:
        unknown = set(bind) - _BIND_KEYS
        if unknown:
            raise ValueError(f"proc_bind has unknown keys {sorted(unknown)}: expected {sorted(_BIND_KEYS)}")
        for value in bind.values():
            parse_cpus(value)
    return proc_bind


def _contributed(process: Any, name: str, count: int) -> Wire | None:
    """The contributions of other wheels for these procs; no module is loaded if no wheel has a hook."""
    from monarch._core.config.entry_points import entry_names

    if process.execution.world is not None or not entry_names("monarch.process"):
        return None
    from monarch._core.hosts.proc_setup import contribute

    return contribute(name, count)


def _setup(
    process: Any, hosts: HostSet, info: MeshInfo, bootstrap: Callable[[], Any] | None, slot: int, elsewhere: bool, hooks: Wire | None
) -> bytes:
    """The set-up that all procs of a mesh need, for hosts `elsewhere` or for this host."""
    from _pickle import dumps

    from monarch._core.pickle.pickling import dumps_in_band

    patches = loaded_module("monarch._core.testing.patching")
    workspaces = loaded_module("monarch._core.sync.path")
    return dumps(
        {
            "job": info.job,
            "host": None if elsewhere else process.host,
            "owner": process.uid,
            "owner_place": (process.uid, process.peers.host_in(info.job)),
            "slot": slot,
            "mesh": (info.state(), whole_shape(info.extent), hosts.state()),
            "env": None if elsewhere else changed(None if hooks is None else hooks[4]),
            "cwd": None if elsewhere else _cwd(),
            "log_dir": "" if elsewhere else process.place.log_dir,
            "path": own_paths() if elsewhere else list(sys.path),
            "workspace": [] if workspaces is None else workspaces.pushed(hosts.agents),
            "config": config.pushed_values(elsewhere),
            "hooks": hooks,
            "bootstrap": None if bootstrap is None else dumps_in_band(bootstrap),
            "executable": hosts.executable,
            "python": tuple(sys.version_info[:2]),
            "start": None if elsewhere else process.place.start_variables,
            "patches": None if patches is None else patches.pushed(),
        },
        5,
    )


def own_paths() -> list[str]:
    """The import folders of this program outside its interpreter and installed packages. Other hosts may have these folders too."""
    installed = (sys.prefix, sys.base_prefix, sys.exec_prefix)
    return [path for path in map(os.path.abspath, sys.path) if not path.startswith(installed) and os.path.isdir(path)]


def _cwd() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # the folder was deleted
        return None


def _command(
    process: Any,
    hosts: HostSet,
    given: BootstrapCommand | None,
    bind: dict[str, str] | None,
    elsewhere: bool,
    changes: dict[str, str | None],
) -> tuple[list[str], str | None, bool, Any, str] | None:
    """The argument vector, program and environment of a process that cannot be forked from the zygote, and its text in errors."""
    from monarch._core.hosts.bootstrap_command import BootstrapCommand, argv_of, check_command, environment_of

    if given is None:
        executable = hosts.executable
        exec_anyway = (
            config.value("spawn_method") == "exec"
            or (bind is not None and "membind" in bind)
            or (not elsewhere and start_variables(changes) != process.place.start_variables)
            or (elsewhere and any(is_start_variable(name) for name in changes))
        )
        if executable is None and not exec_anyway:
            return None
        if executable is None and elsewhere:
            return [], None, True, changes, "python"
        if elsewhere and executable is not None:
            # The interpreter has modules of its own and does not use this program's paths; the host adds missing modules.
            return [], executable, True, changes, executable
        if executable is not None and executable.startswith("$"):
            from monarch._core.process.workspace_variables import BELOW, has_workspaces

            if executable.startswith(BELOW) and not has_workspaces():
                raise ValueError(f"{executable}: the client's own host has no workspace, its code and its environment are the client's")
        given = BootstrapCommand(executable or sys.executable)
    if not isinstance(given, BootstrapCommand):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"bootstrap_command gave {given!r}, which is not a BootstrapCommand")
    check_command(given)
    if changes:
        # A variable that the user sets has precedence over the same variable of a wheel.
        given = BootstrapCommand(given.program, given.arg0, given.args, {**changes, **given.env}, given.inherit_env)
    if elsewhere:
        return argv_of(given), given.program, given.inherit_env, given.env, " ".join((given.program, *(given.args or ())))
    return argv_of(given), given.program, False, environment_of(given), " ".join((given.program, *(given.args or ())))


def _with_modules(
    modules: Preload | list[str],
    hosts: HostSet,
    command: tuple[list[str], str | None, bool, Any, str] | None,
    elsewhere: bool,
    changes: dict[str, str | None],
    setup: bytes,
) -> bytes:
    """The plan of a process that is forked from an interpreter with these modules: that interpreter's command, and the request."""
    from monarch._core.hosts.bootstrap_command import BootstrapCommand, argv_of

    argv, program, inherit, env, _ = command or _NO_COMMAND
    if command is None and elsewhere:
        env = changes
    elif command is None:
        argv, program, inherit, env = argv_of(BootstrapCommand(sys.executable)), sys.executable, False, changed(changes)
    cwd = None if elsewhere else _cwd()
    if isinstance(modules, Preload):
        env, cwd = {**env, **modules.env}, modules.workdir or cwd
    workspaces = loaded_module("monarch._core.sync.path")
    places: list[Any] = [] if workspaces is None else workspaces.pushed(hosts.agents)
    wanted = request(modules, own_paths() if elsewhere else list(sys.path), not elsewhere, places, command is None)
    return marshal.dumps((argv, program, inherit, env, cwd, setup, wanted))


# ---- callbacks and the list of proc meshes


def register_proc_mesh_spawn_callback(callback: Callable[[ProcMesh], Any]) -> None:
    """Runs `callback(proc_mesh)` for each mesh before `spawn_procs` returns it."""
    _spawn_callbacks.append(callback)


def unregister_proc_mesh_spawn_callback(callback: Callable[[ProcMesh], Any]) -> None:
    """Removes a callback; `ValueError` if it is not registered."""
    if callback not in _spawn_callbacks:
        raise ValueError(f"callback is not registered: {callback!r}")
    _spawn_callbacks.remove(callback)


def _remember(mesh: ProcMesh) -> None:
    from weakref import ref

    _active[:] = [r for r in _active if r() is not None]
    _active.append(ref(mesh))


def get_active_proc_meshes() -> list[ProcMesh]:
    """Meshes spawned by this process that have not been stopped."""
    here = simulated_process()
    world = None if here is None else here.execution.world
    meshes = [r() for r in _active]
    live = [(m, m.__core__.owned) for m in meshes if m is not None and m.__core__.info.stopped is None]
    return [m for m, owned in live if owned is not None and owned.process.execution.world is world]
