"""The main function of a proc, forked or started by a command."""

from __future__ import annotations

import marshal
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

# Descriptors of the link and of the setup, for a proc that was started by a command.
FDS_VARIABLE = "MONARCH_PROC_FDS"
# Descriptors of the socket to the zygote and of the modules, for a preloaded interpreter.
PRELOAD_VARIABLE = "MONARCH_PRELOAD_FDS"
# Seconds that a proc at its end stays for receivers that pull parts of its messages: in total, and without progress.
_FETCH_TIMEOUT = 10.0
_FETCH_PAUSE = 2.0
# The exit codes of a process whose program cannot be started, and of one whose program is the wrong one, by the convention of shells.
NO_PROGRAM, WRONG_PROGRAM = 127, 126
FAIL_VARIABLE = "MONARCH_ERROR_DURING_BOOTSTRAP_FOR_TESTING"

# Modules that every proc needs before it can run an actor.
_FIRST = (
    "faulthandler",
    "threading",
    "cloudpickle",
    "monarch._core.actor.actor_logging",
    "monarch._core.call.actor_mesh",
    "monarch._core.call.failure_imports",
    "monarch._core.process.actor_thread",
    "monarch._core.pickle.actor_class",
    "monarch._core.pickle.by_value",
    "monarch._core.pickle.class_cache",
    "monarch._core.debug.hook",
    "monarch._core.observe.raised",
    "monarch._core.start.housekeeping",
    "monarch._core.actor.local_spawn",
    "monarch._core.sync.module_reload",
    "monarch._core.call.port",
    "monarch._core.process.post_import",
    "monarch._core.hosts.proc_mesh",
    "monarch._core.hosts.proc_set",
    "monarch._core.process.stacks",
    "monarch._core.sync.path",
    "monarch.actor",
)
# Modules that most procs need, and those that look at a process, imported in steps that are short enough to fit between two requests.
REST = (
    "socket",
    "selectors",
    "logging",
    "ssl",
    "subprocess",
    "concurrent.futures.thread",
    "linecache",
    "traceback",
    "json",
    "asyncio",
    "monarch._core.actor.async_actor",
    "monarch._core.hosts.spawn",
    "monarch._core.observe.waits",
)
# Modules that procs with commands need: no proc waits for these steps.
LAST = (
    "pathlib",
    "ctypes",
    "urllib.parse",
    "random",
    "shutil",
    "tempfile",
    "monarch.extension.command",
)


def preload(names: Iterable[str] = _FIRST) -> None:
    """Imports modules that procs need, so that all procs share the pages."""
    from importlib import import_module

    for name in names:
        import_module(name)


def default_to_forkserver() -> None:
    """Makes forkserver the default start method: a fork of a process with threads can hang. An explicit choice still applies."""
    if sys.platform.startswith("linux"):
        from monarch._core.process.post_import import when_imported

        when_imported("multiprocessing.context", _choose_forkserver)


def _choose_forkserver(context: Any) -> None:
    context._default_context._default_context = context._concrete_contexts["forkserver"]


def run(body: bytes, link: int, apply_changes: Callable[[], None] | None = None, forked: bool = True) -> int:
    """Runs a proc on its main thread, from its start to its end; gives its exit code.

    `apply_changes` repeats, in the environment of the proc, what imported modules have changed.
    """
    from _pickle import loads

    common, rank, uid, bind, agent, *refusal = marshal.loads(body)
    setup = loads(common)
    # The user's command may start another interpreter.
    check_python(setup["python"])
    if not forked:
        from monarch._core._native import set_parent_death_signal

        set_parent_death_signal(os.getppid())
    _take_over(setup, forked, agent)
    if apply_changes is not None:
        apply_changes()
    default_to_forkserver()
    if bind:
        _bind(bind)
    from monarch._core._native import Process as NativeProcess
    from monarch._core._native import read_modules_unbuffered
    from monarch._core.config import config
    from monarch._core.process import recorder, runtime_log, stacks
    from monarch._core.process.current import set_process
    from monarch._core.process.emergency_exit import end_process
    from monarch._core.process.environment import host_name, start_variables
    from monarch._core.process.log_directory import directory_of_host
    from monarch._core.process.mesh_info import MeshInfo
    from monarch._core.process.process import LocalProcess
    from monarch._core.process.title import set_title
    from monarch._core.shape.shape import Extent
    from monarch._core.start.housekeeping import Housekeeping

    read_modules_unbuffered()
    # From the first value that the client has sent, complaints about the environment are the client's, or those of the agent of this host.
    config.apply_pushed(setup["config"])
    config.reload_config_from_env()
    native = NativeProcess.proc(uid, agent, link, recorder.wanted())
    state, _, _ = setup["mesh"]
    if forked:
        set_title("monarch-proc", state[1], str(rank))
    process = LocalProcess(native, setup["host"] or host_name(), state[1])
    process.peers.job = setup["job"]
    # Every process may send to the client, and the owner waits for a message from this process.
    client = (setup["job"], setup["job"])
    native.route([place for place in (client, setup["owner_place"]) if place[1] != process.agent_uid])
    set_process(process)
    stacks.install(process)
    process.place.python_executable = setup["executable"]
    process.place.start_variables = setup["start"] if setup["start"] is not None else start_variables()
    process.place.info = MeshInfo(state[0], state[1], state[2], Extent.from_wire(state[3]), state[4], agents=state[7], job=state[9])
    process.meshes.known[state[0]] = process.place.info
    process.place.rank = rank
    process.place.log_dir = setup["log_dir"] or directory_of_host(process.agent_uid)
    runtime_log.start(process)
    recorder.start(process)
    runtime_log.event("proc.start", mesh=process.place.info.unique_name, rank=rank)
    if refusal:
        _report_refusal(refusal[0])
    if setup["patches"] is not None:
        from monarch._core.testing import patching

        patching.accept(setup["patches"])
    hooks = None
    if setup["hooks"] is not None:
        from monarch._core.hosts.proc_setup import ProcHooks

        hooks = ProcHooks(setup["hooks"])
        hooks.start()
    if prepare(process, setup, rank):
        native.reply(setup["owner"], setup["slot"], rank, 0, b"")
    try:
        graceful = Housekeeping(process).run()
    except Exception as e:
        end_process("housekeeping", e)
    if not graceful or process.actors:
        # Without its agent, or with an actor that does not end, no finalisation is needed.
        try:
            sys.stdout.flush()
        except (OSError, ValueError, AttributeError):  # the user has closed the stream
            pass
        native.flush_links(0.5)
        os._exit(1)
    if hooks is not None:
        hooks.stop(native.extend_stop)
    native.flush_links(0.5)
    if native.offered_parts():
        # Receivers are pulling parts of this process's messages.
        native.extend_stop(_FETCH_TIMEOUT)
        native.wait_pulled(_FETCH_TIMEOUT, _FETCH_PAUSE)
        native.flush_links(0.5)
    stacks.uninstall(process)
    from monarch._core._native import begin_exit
    from monarch._core.pickle import class_cache

    class_cache.forget()
    begin_exit()
    return 0


def _report_refusal(reason: str) -> None:
    """Reports, once for each set of modules, that its procs start the ordinary way."""
    import logging

    from monarch._core.process import runtime_log

    runtime_log.event("preload.refused", reason=reason)
    logging.getLogger("monarch").warning("preload has no effect: %s", reason)


def check_python(wanted: tuple[int, int]) -> None:
    """Ends the process if it was started by an interpreter of another minor version: code that is pickled by value would crash it."""
    own = tuple(sys.version_info[:2])
    if own != wanted:
        theirs = f"its spawner runs Python {wanted[0]}.{wanted[1]}, and both must be of one minor version"
        print(f"{sys.executable} is Python {own[0]}.{own[1]}, {theirs}", file=sys.stderr, flush=True)
        os._exit(WRONG_PROGRAM)


def _take_over(setup: dict[str, Any], forked: bool, agent: int) -> None:
    """Gives the process the same state however it was started."""
    from monarch._core.sync import module_reload
    from monarch._core.sync import path as workspace_path

    workspace = workspace_path.of_job(agent)
    if forked:
        import gc

        gc.enable()
        if setup["env"] is not None:
            _take_environment(setup["env"])
        elif setup["hooks"] is not None:
            from monarch._core.process.environment import changed

            _take_environment(changed(setup["hooks"][4]))
    if setup["cwd"] is not None:
        try:
            os.chdir(setup["cwd"])
        except OSError:  # the directory is gone; the process stays in its present one
            pass
    take_path(setup["path"], setup["env"] is not None)
    workspace_path.keep(workspace)
    workspace_path.accept(setup["workspace"])
    module_reload.watch_imports()
    new_main()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # pyright: ignore


def take_path(path: list[str], is_whole: bool) -> None:
    """Sets the import path, or inserts the directories that this machine has."""
    if is_whole:
        sys.path[:] = path
    else:
        sys.path[:0] = [entry for entry in path if entry not in sys.path and os.path.isdir(entry)]


def new_main() -> None:
    """Gives the process an empty module `__main__` and no arguments."""
    sys.argv[:] = ["monarch-proc"]
    from types import ModuleType

    module = ModuleType("__main__")
    module.__dict__["__builtins__"] = sys.modules["builtins"]
    # The old module is kept alive: at interpreter exit the frames below still use it.
    sys.modules.setdefault("monarch._core._bootstrap_main", sys.modules["__main__"])
    sys.modules["__main__"] = module


def _take_environment(wanted: dict[str, str]) -> None:
    zone = os.environ.get("TZ")
    for name in [n for n in os.environ if n not in wanted]:
        del os.environ[name]
    for name, value in wanted.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
    if os.environ.get("TZ") != zone:
        import time

        time.tzset()


def _bind(options: dict[str, str]) -> None:
    """Binds before there are threads, which inherit the binding; ends the process if the kernel refuses."""
    from monarch._core.process.cpu_binding import bind

    try:
        bind(options)
    except OSError as e:
        print(f"cannot bind to {options}: {e}", file=sys.stderr)
        sys.stderr.flush()
        os._exit(1)


def prepare(process: Any, setup: dict[str, Any], rank: int) -> bool:
    """Runs the user's bootstrap. An error goes to the owner, and fails all actors that are spawned here."""
    from monarch._core.process.forked_child import leave_if_child

    try:
        if os.environ.get(FAIL_VARIABLE) == "1":
            raise RuntimeError("Error during bootstrap for testing")
        if setup["bootstrap"] is not None:
            _bootstrap(setup["bootstrap"])
            leave_if_child()
    except BaseException as e:
        leave_if_child(e)
        if not isinstance(e, Exception):
            raise
        from monarch._core.call.answer import pack_error
        from monarch._core.pickle.remote_exception import format_exception, raised_text

        process.place.bootstrap_failure = (f"bootstrap failed: {raised_text(e)}", format_exception(e))
        display = process.place.info.display(rank)
        process.native.reply(setup["owner"], setup["slot"], rank, 1, pack_error(e, display, process.pid, process.host))
        return False
    return True


def _bootstrap(body: bytes) -> None:
    from monarch._core.call.coroutine_function import is_coroutine_function
    from monarch._core.pickle.pickling import loads

    cuda = sys.modules.get("torch")
    before = {k: v for k, v in os.environ.items() if k.startswith("CUDA_")}
    function = loads(body)
    result = function()
    if is_coroutine_function(function):
        import asyncio

        asyncio.run(result)
    after = {k: v for k, v in os.environ.items() if k.startswith("CUDA_")}
    if before != after and cuda is not None and cuda.cuda.is_initialized():
        import logging

        logging.getLogger("monarch").warning(
            "bootstrap changed %s after CUDA was initialised", sorted(set(before) ^ set(after)) or sorted(after)
        )
