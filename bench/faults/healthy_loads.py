"""Healthy jobs with much work: processors, the GIL, memory, files, output, locks, imports."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import logging
import os
import queue
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.faults.actors import Trainer, work
from bench.faults.program import Fault, forever, rest
from monarch.actor import Actor, current_rank, endpoint, this_host

_MIB = 1 << 20
_GROUPS = "/sys/fs/cgroup"
# The file of the program in which the modules of `long_import` are written: each of them takes a tenth of a second.
_MODULES = 400


class _Server(socketserver.TCPServer):
    """Puts requests into a queue."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), socketserver.BaseRequestHandler)
        self.requests: queue.Queue[object] = queue.Queue()

    def process_request(self, request: object, client_address: object) -> None:
        self.requests.put(request)


class Loaded(Actor):
    """Endpoints with ordinary work of many kinds."""

    @endpoint
    def pure_python(self, threads: int, seconds: float) -> None:
        """Threads of Python code, which hand the GIL to each other."""
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, [seconds] * threads))

    @endpoint
    def hashes(self, threads: int) -> None:
        """Compiled code that releases the GIL."""
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(hashlib.sha256, [bytes(32 * _MIB)] * threads))

    @endpoint
    def holds_gil(self) -> None:
        """Compiled code that keeps the GIL for a fraction of a second."""
        pow(7, 1 << 19)

    @endpoint
    def compress(self) -> int:
        return len(zlib.compress(bytes(64 * _MIB)))

    @endpoint
    def allocate(self) -> int:
        """Takes memory, and gives it back."""
        return sum(len(bytearray(64 * _MIB)) for _ in range(4))

    @endpoint
    def files(self) -> None:
        with tempfile.TemporaryFile() as file:
            for _ in range(20):
                file.write(bytes(_MIB))
                os.fsync(file.fileno())

    @endpoint
    def lines(self) -> None:
        """Output and logging, a thousand lines."""
        log = logging.getLogger("training")
        for step in range(500):
            print(f"step {step}")
            log.warning("loss %f", 1.0 / (1 + step))

    @endpoint
    def child(self, seconds: float) -> None:
        """A helper program."""
        subprocess.run([sys.executable, "-c", f"import time; time.sleep({seconds})"], check=True)

    @endpoint
    def many_threads(self) -> None:
        """Threads that wait."""
        self.wanted = threading.Event()
        for _ in range(100):
            threading.Thread(target=self.wanted.wait, daemon=True).start()

    @endpoint
    def contend(self) -> None:
        """Threads that take one lock in turns."""
        lock = threading.Lock()

        def take() -> None:
            for _ in range(50):
                with lock:
                    work(0.001)

        with ThreadPoolExecutor(8) as pool:
            for one in [pool.submit(take) for _ in range(8)]:
                one.result()

    @endpoint
    def under_lock(self) -> None:
        """Waits for a lock whose holder works for long, and gets on."""
        lock, taken = threading.Lock(), threading.Event()

        def busy() -> None:
            with lock:
                taken.set()
                for batch in range(4000):
                    hashlib.sha256(bytes(batch * 1000)).digest()
                    work(0.01)

        threading.Thread(target=busy, name="checkpoint", daemon=True).start()
        taken.wait()
        with lock:
            pass

    @endpoint
    def load_data(self) -> None:
        """Threads that load batches into a queue of eight, faster than they are used."""
        batches: queue.Queue[bytes] = queue.Queue(8)

        def load() -> None:
            while True:
                batches.put(os.urandom(100_000))

        for index in range(3):
            threading.Thread(target=load, name=f"loader-{index}", daemon=True).start()
        while True:
            hashlib.sha256(batches.get()).digest()
            work(0.005)

    @endpoint
    def starve(self) -> None:
        """A data loader that has nothing to do for now."""
        batches: queue.Queue[bytes] = queue.Queue(8)
        threading.Thread(target=batches.get, name="writer", daemon=True).start()

    @endpoint
    def serve(self) -> None:
        """The first rank answers requests that come from outside, one after another; the others have nothing to do."""
        if current_rank().rank == 0:
            self.server = _Server()
            threading.Thread(target=self.server.serve_forever, daemon=True).start()
            self.server.requests.get()

    @endpoint
    def load_modules(self, folder: str) -> None:
        """An import that takes long, and goes on."""
        sys.path.insert(0, folder)
        importlib.import_module("large_library")


class SlowStart(Actor):
    """Needs four seconds to start."""

    def __init__(self) -> None:
        work(4.0)

    @endpoint
    def pid(self) -> int:
        return os.getpid()


def _again(endpoint_name: str, *arguments: Any, ranks: int = 2) -> Callable[[], None]:
    """A program that calls an endpoint again and again."""

    def run() -> None:
        loaded = this_host().spawn_procs({"gpus": ranks}, name="procs").spawn("loaded", Loaded)
        forever(lambda: getattr(loaded, endpoint_name).call(*arguments).get())

    return run


def _once(endpoint_name: str, *arguments: Any, ranks: int = 2) -> Callable[[], None]:
    """A program that waits for one call."""

    def run() -> None:
        loaded = this_host().spawn_procs({"gpus": ranks}, name="procs").spawn("loaded", Loaded)
        rest(getattr(loaded, endpoint_name).call(*arguments))

    return run


def many_procs() -> None:
    """Sixteen procs in lock step."""
    trainers = this_host().spawn_procs({"gpus": 16}, name="workers").spawn("trainer", Trainer)
    forever(lambda: trainers.step.call(0.01).get())


def nice() -> None:
    """A job with the lowest priority."""
    os.nice(19)
    trainers = this_host().spawn_procs({"gpus": 2}, name="workers").spawn("trainer", Trainer)
    forever(lambda: trainers.step.call(0.05).get())


def busy_client() -> None:
    """A client that computes, and seldom calls."""
    trainers = this_host().spawn_procs({"gpus": 2}, name="workers").spawn("trainer", Trainer)
    forever(lambda: (work(1.0), trainers.step.call(0.01).get()))


def empty() -> None:
    """A client without procs."""
    this_host()
    rest()


def long_import() -> None:
    """A library of four hundred modules, each of which takes a tenth of a second."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder, "large_library")
        package.mkdir()
        names = [f"part{index}" for index in range(_MODULES)]
        for name in names:
            Path(package, f"{name}.py").write_text("import time\ntime.sleep(0.1)\n")
        Path(package, "__init__.py").write_text("".join(f"from large_library import {name}\n" for name in names))
        loaded = this_host().spawn_procs({"gpus": 2}, name="procs").spawn("loaded", Loaded)
        rest(loaded.load_modules.call(folder))


def slow_start() -> None:
    """Meshes whose actors take long to start, again and again."""

    def once() -> None:
        with this_host().spawn_procs({"gpus": 2}, name="short") as procs:
            procs.spawn("slow", SlowStart).pid.call().get()

    forever(once)


@contextlib.contextmanager
def _group(processors: float) -> Generator[None, None, None]:
    """This process and its descendants in a cgroup with a limit of processor time."""
    second = os.path.exists(f"{_GROUPS}/cgroup.controllers")
    folder = Path(_GROUPS, *(() if second else ("cpu",)), f"monarch-healthy-{os.getpid()}")
    folder.mkdir()
    try:
        if second:
            Path(folder, "cpu.max").write_text(f"{int(processors * 100_000)} 100000")
        else:
            Path(folder, "cpu.cfs_quota_us").write_text(str(int(processors * 100_000)))
        Path(folder, "cgroup.procs").write_text(str(os.getpid()))
        yield
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()


def limited() -> None:
    """A job in a cgroup whose limit of processor time it does not reach."""
    with _group(1.5):
        trainers = this_host().spawn_procs({"gpus": 2}, name="workers").spawn("trainer", Trainer)
        pause = threading.Event()
        forever(lambda: (trainers.step.call(0.01).get(), pause.wait(0.1)))


def pauses() -> None:
    """A job that works for a second and rests for a second."""
    trainers = this_host().spawn_procs({"gpus": 2}, name="workers").spawn("trainer", Trainer)
    forever(lambda: (trainers.step.call(1.0).get(), time.sleep(1.0)))  # sleeps: the load of the program


HEALTHY = (
    Fault("python_threads", _again("pure_python", 4, 1.0), "", 2.0),
    Fault("hashing_threads", _again("hashes", 4), "", 2.0),
    Fault("short_holds_of_the_gil", _again("holds_gil"), "", 2.0),
    Fault("compression", _again("compress"), "", 1.0),
    Fault("memory_up_and_down", _again("allocate"), "", 1.0),
    Fault("files", _again("files"), "", 1.0),
    Fault("much_output", _again("lines", ranks=3), "", 1.0),
    Fault("helper_programs", _once("child", 60.0), "", 6.0),
    Fault("many_threads", _again("many_threads"), "", 1.0),
    Fault("lock_in_turns", _again("contend"), "", 6.0),
    Fault("lock_of_a_worker", _once("under_lock"), "", 7.0),
    Fault("data_loader", _once("load_data"), "", 6.0),
    Fault("idle_data_loader", _again("starve"), "", 1.0),
    Fault("serving_rank", _once("serve"), "", 6.0),
    Fault("long_import", long_import, "", 13.0),
    Fault("slow_start", slow_start, "", 1.0),
    Fault("many_procs", many_procs, "", 1.0),
    Fault("oversubscribed", _again("pure_python", 1, 2.0, ranks=6), "", 3.0),
    Fault("nice", nice, "", 1.0),
    Fault("limited", limited, "", 2.0, f"{_GROUPS}"),
    Fault("busy_client", busy_client, "", 3.0),
    Fault("pauses", pauses, "", 1.0),
    Fault("empty", empty, ""),
)
