"""The imports of a preloaded interpreter, and the examination for state that a fork would not carry as a fresh interpreter has it.

Each module is examined after its import, so that the error names it: threads, child processes, forks, descriptors (sockets, devices,
files), shared memory, timers, random states, settings that each process gets anew, and exceptions or exits. A trial fork then runs the
handlers of `os.register_at_fork` and `pthread_atfork`. A forked process gets random states of its own, as a fresh interpreter has, the
text that the modules printed, and their changes of the environment and the import path.

The check cannot see a module that keeps the number of its process, the time or a host name.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import sys
import time

from monarch._core.pickle.remote_exception import raised_text
from monarch._core.process.post_import import cancel, when_imported

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self
    from weakref import ref

# Seconds for the handlers of a fork.
_FORK_TIMEOUT = 10.0
# Seconds that the kernel may list a thread that has ended.
_THREAD_END = 0.1
# Devices of accelerators. An open one stands for a context of the driver.
_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/accel")
# Files that every process may share.
_SHARED = ("/dev/null", "/dev/urandom", "/dev/random")
# Modules with a random state.
_RANDOM = ("random", "numpy.random", "torch")
_LONGEST_TEXT = 64 << 10


class Uncarried(Exception):
    """A fork would not carry the state of this interpreter. The text names the module and what it has started."""


class ImportCheck:
    """Used as a context manager around the imports."""

    def __init__(self, own: int) -> None:
        self._own = own
        self._pid = os.getpid()
        self._forks = 0
        self._threads: set[str] = set()
        self._files: dict[int, str] = {}
        self._maps: set[str] = set()
        self._handlers: dict[int, Any] = {}
        # The handlers of signals that modules have installed.
        self.handlers: dict[int, Any] = {}
        self._random: dict[str, Any] = {}
        self._streams: list[int] = []
        self._captured: list[int] = []
        self.printed: list[bytes] = []
        # Descriptors that a forked process keeps.
        self.descriptors: set[int] = {0, 1, 2}
        self._stats: dict[str, tuple[int, int, int] | None] = {}
        self._origins: dict[str, str | None] = {}
        self._path: list[str] = []
        # The variables that modules have read.
        self.read: set[str] = set()
        self._settings: dict[str, Any] = {}
        self._environment: dict[str, str] = {}
        self._generators: set[int] = set()
        self._seeds = _Seeds()
        # Changes that modules have made for the whole process: variables of the environment, and folders at the end of the import path.
        self._changes: dict[str, str | None] = {}
        self._added: list[str] = []

    # ---- the imports

    def __enter__(self) -> Self:
        self._handlers = _handlers()
        for name in _RANDOM:
            self._note_random(name)
        when_imported("random", self._seeds.record)
        os.register_at_fork(after_in_parent=self._count_fork)
        for fd, name in ((1, "stdout"), (2, "stderr")):
            self._streams.append(os.dup(fd))
            self._captured.append(os.memfd_create(f"monarch-{name}"))
            os.dup2(self._captured[-1], fd)
        os.environ.__class__ = _recording(self.read)
        self._threads, self._files, self._maps = _threads(), _files(), _shared_maps()
        self._path, self._environment = list(sys.path), dict(os.environ)
        self._settings, self._generators = _settings(), _generators()
        return self

    def __exit__(self, *_: object) -> None:
        os.environ.__class__ = os._Environ  # pyright: ignore[reportPrivateUsage]
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for fd, saved, captured in zip((1, 2), self._streams, self._captured, strict=True):
            os.dup2(saved, fd)
            os.close(saved)
            self.printed.append(os.pread(captured, _LONGEST_TEXT, 0))
            os.close(captured)
        self.handlers = {number: found for number, found in _handlers().items() if found != self._handlers.get(number)}
        self._note_files()
        self.descriptors |= {fd for fd, target in _files().items() if target in _SHARED}
        own, self._path = self._path, list(sys.path)
        self._added = self._path[len(own) :]
        sys.path[:] = own
        before, after = self._environment, dict(os.environ)
        self._changes = {name: after.get(name) for name in {*before, *after} if before.get(name) != after.get(name)}
        for name in _RANDOM:
            cancel(name)
        self._seeds.end()

    def import_one(self, name: str) -> None:
        """Imports a module; `Uncarried` if a fork could not carry what it leaves."""
        from importlib import import_module

        try:
            import_module(name)
        except BaseException as e:
            if os.getpid() != self._pid:
                os._exit(0)
            what = f"exits with {e.code!r}" if isinstance(e, SystemExit) else f"fails: {raised_text(e)}"
            raise Uncarried(f"the import of {name} {what}") from None
        if os.getpid() != self._pid:
            # A fork of the module's own, which belongs to no process that would have imported it.
            os._exit(0)
        if "." not in name:
            self._origins[name] = _origin(name, sys.path)
        looks = (
            self._left_threads,
            self._left_children,
            self._left_files,
            self._left_maps,
            self._left_timers,
            self._left_random,
            self._left_settings,
        )
        for look in looks:
            if found := look():
                raise Uncarried(f"{name} {found}, which a fork does not carry")

    def _count_fork(self) -> None:
        self._forks += 1

    def _left_threads(self) -> str:
        new = _threads() - self._threads
        if not new:
            return ""
        import threading

        names = [thread.name for thread in threading.enumerate() if str(thread.native_id) in new]
        if not names and not (new := self._left_after_fork()):
            return ""
        return f"has started {len(new)} thread{'s' * (len(new) > 1)} ({', '.join(names) or 'of a library'})"

    def _left_after_fork(self) -> set[str]:
        """The threads that a fork leaves. OpenBLAS, a part of NumPy, ends its threads before each fork, and starts them again on demand."""
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns of a fork in a process with threads
            pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        self._forks -= 1
        end = time.monotonic() + _THREAD_END
        while (left := _threads() - self._threads) and time.monotonic() < end:
            time.sleep(0.001)
        return left

    def _left_children(self) -> str:
        if self._forks:
            return "forks the process"
        children = _children()
        return f"has started the process {children[0]}" if children else ""

    def _left_files(self) -> str:
        files = _files()
        for fd, name in enumerate(("stdin", "stdout", "stderr")):
            if files.get(fd) != self._files.get(fd):
                return f"closes or redirects {name}"
        for fd, target in files.items():
            if self._files.get(fd) == target or target in _SHARED:
                continue
            if target.startswith(_DEVICES):
                return f"has opened the device {target}: a CUDA or HIP context"
            return f"has opened a socket ({_bound(fd)})" if target.startswith("socket:") else f"keeps {target} open"
        return ""

    def _left_maps(self) -> str:
        new = _shared_maps() - self._maps
        return f"has mapped shared memory ({min(new)})" if new else ""

    def _left_timers(self) -> str:
        is_set = any(signal.getitimer(which)[0] for which in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF))
        return "has set a timer" if is_set else ""

    def _left_random(self) -> str:
        for name, state in self._random.items():
            if _state_of(name) != state:
                return f"uses or seeds the random state of {name.partition('.')[0]}"
        unknown = _generators() - self._generators - self._seeds.known()
        return "has a random generator of NumPy, or one with a `seed` of its own" if unknown else ""

    def _left_settings(self) -> str:
        for name, value in _settings().items():
            if value != self._settings[name]:
                return f"changes the {name}"
        return "" if sys.path[: len(self._path)] == self._path else "changes the begin of the import path"

    def _note_random(self, name: str) -> None:
        def note(_: object) -> None:
            self._random[name] = _state_of(name)

        when_imported(name, note)

    # ---- the trial fork

    def try_fork(self) -> None:
        """Forks once; `Uncarried` if a handler fails, or if a library refuses to work in the child."""
        failed: list[str] = []
        hook = sys.unraisablehook
        sys.unraisablehook = lambda found: failed.append(_named(found))
        read, write = os.pipe2(os.O_CLOEXEC)
        try:
            pid = os.fork()
            if pid == 0:
                try:
                    if not failed and _is_cuda_lost():
                        failed.append("torch has used CUDA")
                    os.write(write, (failed[0] if failed else "-").encode(errors="replace")[:1000])
                finally:
                    os._exit(0)
        except OSError as e:
            raise Uncarried(f"a fork fails: {e.strerror}") from None
        finally:
            sys.unraisablehook = hook
            os.close(write)
        ready, _, _ = select.select([read], [], [], _FORK_TIMEOUT)
        text = os.read(read, 1024).decode(errors="replace") if ready else ""
        os.close(read)
        if not ready:
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        if failed or text != "-":
            why = failed[0] if failed else text or ("a handler of a fork hangs" if not ready else "a handler of a fork ends the process")
            raise Uncarried(why)

    # ---- the code of the modules

    def _note_files(self) -> None:
        for module in list(sys.modules.values()):
            path = getattr(module, "__file__", None)
            if isinstance(path, str) and path not in self._stats:
                self._stats[path] = _stat(path)

    def changed_file(self) -> str | None:
        """A file of a module that has changed since its import."""
        for path, known in self._stats.items():
            if _stat(path) != known:
                return path
        for name, origin in self._origins.items():
            if (found := _origin(name, self._path)) != origin:
                return found or origin
        return None

    # ---- a forked process

    def begin_process(self) -> None:
        """Gives a forked process what a fresh interpreter has of its own."""
        for fd, text in enumerate(self.printed, 1):
            view = memoryview(text)
            while view:
                view = view[os.write(fd, view) :]
        self._seeds.seed_again()
        numpy = sys.modules.get("numpy.random")
        if numpy is not None:
            numpy.seed()
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.default_generator.seed()

    def apply_changes(self) -> None:
        """Repeats what the modules have changed, in a process that has its own environment and import path."""
        for name, value in self._changes.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if "TZ" in self._changes:
            time.tzset()
        sys.path += [folder for folder in self._added if folder not in sys.path]


def check_names(folder: str, own_modules: frozenset[str]) -> None:
    """`Uncarried` if a program in the folder would import a file of its own in place of a module that is loaded already.

    `own_modules`: those that an interpreter has before a program can have files.
    """
    try:
        entries = list(os.scandir(folder))
    except OSError:  # the program itself reports the folder
        return
    loaded = {name for name in sys.modules if "." not in name} - own_modules
    for entry in entries:
        name = entry.name.partition(".")[0]
        is_module = entry.name.endswith((".py", ".pyc", ".so")) or os.path.exists(os.path.join(entry.path, "__init__.py"))
        if is_module and name in loaded and not _is_file_of(sys.modules[name], folder):
            raise Uncarried(f"{entry.path} has the name of a module that is loaded already")


def _is_file_of(module: Any, folder: str) -> bool:
    path = getattr(module, "__file__", None)
    return isinstance(path, str) and os.path.realpath(path).startswith(os.path.realpath(folder) + "/")


def _handlers() -> dict[int, Any]:
    return {number: signal.getsignal(number) for number in signal.valid_signals()}


def _threads() -> set[str]:
    return set(os.listdir("/proc/self/task"))


def _children() -> list[str]:
    try:
        with open("/proc/thread-self/children") as file:
            return file.read().split()
    except OSError:  # a kernel without this file: a child shows by a wait
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return []
        return ["" if found is None else str(found.si_pid)]


def _files() -> dict[int, str]:
    found: dict[int, str] = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the descriptor of this listing
            continue
    return found


def _bound(fd: int) -> str:
    import socket

    try:
        with socket.socket(fileno=os.dup(fd)) as found:
            return f"{socket.AddressFamily(found.family).name} {found.getsockname()!r}"
    except (OSError, ValueError):
        return "of an unknown family"


def _shared_maps() -> set[str]:
    found: set[str] = set()
    with open("/proc/self/maps") as file:
        for line in file:
            where, mode, _, _, _, *path = line.split(None, 5)
            if mode.startswith("rw") and mode[3] == "s":
                found.add(path[0].strip() if path else where)
    return found


def _origin(name: str, path: list[str]) -> str | None:
    """The file that the import path has for a name. The module may have another origin, such as `frozen`."""
    from importlib.machinery import PathFinder

    PathFinder.invalidate_caches()
    spec = PathFinder.find_spec(name, path)
    return None if spec is None else spec.origin


def _settings() -> dict[str, Any]:
    """The settings that every process is given anew: a change of a module would be lost."""
    return {
        "working directory": os.readlink("/proc/self/cwd"),
        "arguments of the program": list(sys.argv),
        "blocked signals": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "state of the garbage collector": gc.isenabled(),
        "standard streams": (sys.stdin, sys.stdout, sys.stderr),
    }


def _generators() -> set[int]:
    """The generators of random numbers, by address, besides those whose states are compared."""
    random: Any = sys.modules.get("random")
    numpy: Any = sys.modules.get("numpy.random")
    if random is None:
        return set()
    kinds: list[type] = [random.Random]
    shared: list[Any] = [random.random.__self__]
    if numpy is not None:
        kinds += [numpy.Generator, numpy.RandomState]
        shared.append(numpy.random_sample.__self__)
    found = [one for one in gc.get_objects() if issubclass(type(one), tuple(kinds)) and not issubclass(type(one), random.SystemRandom)]
    return {id(one) for one in found} - {id(one) for one in shared}


class _Seeds:
    """How modules have seeded their objects of `random.Random`.

    A generator that the operating system has seeded is seeded again in each forked process. One with a seed of the module goes on from its
    state, which a fresh interpreter has too.
    """

    def __init__(self) -> None:
        self._random: Any = None
        self._seed: Any = None
        self._found: dict[int, tuple[ref[Any], bool]] = {}

    def record(self, random: Any) -> None:
        """Records the generators that are seeded from now on; `random` is the module."""
        from weakref import ref

        known, seed = self._found, random.Random.seed

        def recorded(generator: Any, a: Any = None, version: int = 2) -> None:
            seed(generator, a, version)
            known[id(generator)] = ref(generator), a is None

        self._random, self._seed = random, seed
        random.Random.seed = recorded

    def end(self) -> None:
        if self._random is not None:
            self._random.Random.seed = self._seed

    def known(self) -> set[int]:
        """The generators, by address."""
        return {number for number, (generator, _) in self._found.items() if generator() is not None}

    def seed_again(self) -> None:
        for generator, is_systems in self._found.values():
            found = generator()
            if found is not None and is_systems:
                found.seed()


def _state_of(name: str) -> Any:
    module: Any = sys.modules.get(name)
    try:
        if name == "random":
            return module.getstate()
        if name == "numpy.random":
            kind, keys, *rest = module.get_state()
            return (kind, keys.tobytes(), *rest)
        return module.default_generator.get_state().numpy().tobytes()
    except Exception:  # the module is not complete
        return None


def _is_cuda_lost() -> bool:
    cuda = sys.modules.get("torch.cuda")
    return cuda is not None and bool(cuda._is_in_bad_fork())


def _named(found: Any) -> str:
    where = getattr(found.object, "__module__", None)
    name = getattr(found.object, "__qualname__", repr(found.object))
    return f"{where}: its handler {name} of a fork fails: {raised_text(found.exc_value)}"


def _stat(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _recording(read: set[str]) -> type:
    """The class of `os.environ` that records the names of variables that are read."""

    base: Any = os._Environ  # pyright: ignore[reportPrivateUsage]

    class Recording(base):
        def __getitem__(self, key: str) -> str:
            read.add(key)
            return base.__getitem__(self, key)

    return Recording
