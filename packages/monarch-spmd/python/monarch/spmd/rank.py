"""One rank of an attempt: the actor beside its program, which starts it, passes its output on and knows how it ended."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import json
import linecache
import os
import signal
import socket
import stat
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from monarch.actor import Actor, concurrent_endpoint, current_rank
from monarch.extension import PDB_FILE
from monarch.extension.channel import CHANNEL_FILE
from monarch.extension.command import CannotStart, CommandLine, GuardedProcess, OutputBuffer, OutputPipe
from monarch.extension.program import VARIABLE, RunEnded
from monarch.spmd import start_program
from monarch.spmd.address import ReservedPort, reachable_address
from monarch.spmd.breakpoints import Breakpoints
from monarch.spmd.environment import Attempt, RankPlace, own_device, variables
from monarch.spmd.memory_cgroup import out_of_memory_kills
from monarch.spmd.program_requests import Request, Requests
from monarch.spmd.stacks import of_program

if TYPE_CHECKING:
    from monarch.actor import ProcMesh
    from monarch.spmd.snapshot_transfer import RankSnapshots

# Seconds from SIGTERM to SIGKILL, if the launch has no `--shutdown-timeout`.
GRACE_S = 5.0
_BUFFERED = 256 << 10
# Seconds for a process to write its stacks.
_STACKS_S = 1.0
_LONGEST_STACKS = 256 << 10
_LONGEST_ERROR = 4 << 20
_LONGEST_MESSAGE, _LONGEST_TRACEBACK = 4 << 10, 64 << 10
_PR_SET_CHILD_SUBREAPER = 36


def _log_file(path: Path) -> IO[bytes]:
    """An empty file. OSError for what is there and is no file: a link may lead to a file of value, and a pipe has no reader."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            what = "is a symbolic link" if error.errno == errno.ELOOP else "is a pipe or a socket"
            raise OSError(error.errno, f"the name of a log file {what}", str(path)) from None
        raise
    file = open(descriptor, "wb", buffering=0)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "the name of a log file is no file", str(path))
    os.ftruncate(descriptor, 0)
    return file


class Program(NamedTuple):
    """What a rank runs; `kind` is that of `LaunchSpec`, whose module ranks do not import: each of them waits for its imports."""

    kind: str
    name: str
    arguments: tuple[str, ...]
    has_macros: bool = True

    def on(self, local_rank: int) -> Program:
        """With `$local_rank` and `${local_rank}` replaced, and `$$` by `$`: in all words but the name of a command, as torchrun does."""
        if not self.has_macros or not any("$" in word for word in (self.name, *self.arguments)):
            return self
        from string import Template

        name, *arguments = (Template(word).safe_substitute(local_rank=local_rank) for word in (self.name, *self.arguments))
        return Program(self.kind, self.name if self.kind == "command" else name, tuple(arguments), False)

    def argv(self, python: str, starter: str) -> list[str]:
        """The command of a rank: this interpreter, with the file `start_program.py`, or the program alone where it is a command."""
        if self.kind == "command":
            return [self.name, *self.arguments]
        return [python, "-u", starter, self.kind, self.name, *self.arguments]


class Order(NamedTuple):
    """What the ranks of a mesh run. `first` is the rank of the first of them, in a world of `world_size`, with `per_host` on each host.

    `log_dir` is the folder of the attempt on the hosts, with one folder a rank; None: no files. `control` is the actor of the run.
    """

    program: Program
    local_addr: str | None
    # The port of the ranks' rendezvous; None or 0: chosen on the host.
    master_port: int | None
    virtual_local_rank: bool
    attempt: Attempt
    env: Mapping[str, str]
    workdir: str | None
    log_dir: str | None
    first: int
    world_size: int
    per_host: int
    # Seconds from SIGTERM to SIGKILL.
    grace: float
    control: Any


class Started(NamedTuple):
    """The program of a rank runs, or could not be started: then `problem` is why. `at`: seconds of the epoch by the host's clock."""

    host: str
    pid: int
    at: float
    problem: str = ""


class Ended(NamedTuple):
    """How the program of a rank has ended. `code` is negative for a signal, `at` as in Started.

    `was_ended`: a signal of the run came before. `message` and `traceback` are those of the exception, if the program left one; `raised_at`
    is when it did, where no signal of the run came before that.
    """

    code: int
    at: float
    was_ended: bool
    was_out_of_memory: bool
    message: str = ""
    traceback: str = ""
    # Another process has the port on which this rank had to listen.
    has_lost_port: bool = False
    raised_at: float | None = None


class _Program:
    """The program of this rank, for handlers of its requests."""

    def __init__(self, control: Any) -> None:
        self._control = control

    async def procs(self, run_id: str | None) -> list[ProcMesh]:
        found: list[ProcMesh] = await self._control.procs.call_one(run_id)
        why = None if found or run_id is None else await self._control.end_of.call_one(run_id)
        if why is not None:
            raise RunEnded(why)
        return found


Chunk = tuple[int, bytes]
# The stream of this actor's messages for the user, shown wherever the program's streams are redirected.
NOTES = 0


class Rank(Actor):
    """Reads are answered when there is output, so the reader decides how fast the program may print."""

    _is_system_actor = True

    def __init__(self, order: Order) -> None:
        self._order = order
        self._place = RankPlace(order.first + current_rank().rank, order.world_size, order.per_host)
        self._program = order.program.on(self._place.local_rank)
        self._reserved: ReservedPort | None = None
        # The port of the ranks' rendezvous, if it belongs to this rank and was chosen here.
        self._port: int | None = None
        self._process: GuardedProcess | None = None
        self._buffer = OutputBuffer(_BUFFERED)
        self._pipes: list[OutputPipe] = []
        self._news = asyncio.Event()
        self._ended: Ended | None = None
        self._ending: asyncio.Task[None] | None = None
        self._moved = time.monotonic()
        self._kills = out_of_memory_kills()
        self._requests: Requests | None = None
        self._snapshots: RankSnapshots | None = None
        # Files without a name, which end with this process, however it ends.
        self._error = _Unnamed("error")
        # Whether the program had left an exception when the run sent its signal.
        self._has_raised_before = False
        self._stack = _Unnamed("stacks")
        self._breakpoints = Breakpoints(order.attempt.run_id, self._place.rank, dict(current_rank()), self._show, self._note)
        # A process that leaves the session of the program, and outlives it, becomes a child of this process.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    @concurrent_endpoint
    async def reserve(self, is_alone: bool) -> tuple[str, int]:
        """Where the ranks meet: an address of this host and a port, which stays bound until the program of this rank starts.

        `is_alone`: all ranks are on this host.
        """
        self._close_port()
        self._reserved = ReservedPort()
        if self._order.master_port in (None, 0):
            self._port = self._reserved.number
        address = self._order.local_addr or ("127.0.0.1" if is_alone else reachable_address())
        return address, self._reserved.number

    @concurrent_endpoint
    async def start(self, address: str, port: int) -> Started:
        """Starts the program."""
        order = self._order
        host = socket.gethostname()
        problem = _missing(self._program, order.workdir)
        environment: dict[str, str] = {}
        if not problem:
            try:
                environment = self._environment(address, port)
            except ValueError as error:
                problem = str(error)
        try:
            if not problem:
                argv = self._program.argv(sys.executable, start_program.__file__)
                self._close_port()
                if self._program.kind != "command":
                    self._breakpoints.listen()
                await self._start(CommandLine(argv, environment, order.workdir, is_preloaded=self._program.kind != "command"))
        except CannotStart as error:
            problem = f"cannot start {error.word!r}: {os.strerror(error.errno)} ({errno.errorcode.get(error.errno, error.errno)})"
        except OSError as error:  # an error of the files
            problem = f"{error.filename or order.log_dir}: {error.strerror}"
        pid = 0 if self._process is None else self._process.pid
        return Started(host, pid, time.time(), problem)

    @concurrent_endpoint
    async def read(self) -> tuple[list[Chunk], Ended | None]:
        """What has been printed since; with it, when all of it is read, the end of the program."""
        while self._buffer.size == 0 and (self._ended is None or any(pipe.is_open for pipe in self._pipes)):
            self._news.clear()
            await self._news.wait()
        taken = self._buffer.take()
        for pipe in self._pipes:
            pipe.resume()
        is_over = not self._buffer.size and not any(pipe.is_open for pipe in self._pipes)
        return taken, self._ended if is_over else None

    @concurrent_endpoint
    async def end(self, grace: float) -> None:
        """SIGTERM to the program's group, SIGKILL to all that descends from it `grace` seconds later; returns at once."""
        if self._ending is None and self._process is not None:
            self._ending = asyncio.get_running_loop().create_task(self._end(self._process, grace))

    @concurrent_endpoint
    async def idle(self) -> float:
        """For how many seconds the program has printed nothing, not even a part of a line; 0 while it stands in the debugger."""
        return 0.0 if self._breakpoints.is_standing else time.monotonic() - self._moved

    @concurrent_endpoint
    async def stacks(self) -> str:
        """The stacks of all threads of the program; empty where it is no Python program, or does not answer."""
        before = self._stack.size()
        # A process that has not registered the signal would end by it.
        if self._process is None or self._ended is not None or not before:
            return ""
        try:
            os.kill(self._process.pid, start_program.STACKS)
        except OSError:  # the process has ended meanwhile
            return ""
        end = time.monotonic() + _STACKS_S
        size = before
        # polls: the file grows while the signal's handler writes.
        while time.monotonic() < end:
            await asyncio.sleep(0.02)
            last, size = size, self._stack.size()
            if size > before and size == last:
                break
        # The thread of the program comes last.
        dump = self._stack.read(max(before, size - _LONGEST_STACKS), _LONGEST_STACKS).decode(errors="replace")
        linecache.checkcache()
        return of_program(dump, linecache.getline)

    async def __cleanup__(self, exc: Exception | None) -> None:
        process = self._process
        if process is not None:
            if process.pid and not process.ended.done():
                process.signal(signal.SIGKILL)
                await asyncio.wait((process.ended,), timeout=1.0)
            for pipe in self._pipes:
                pipe.close()
            process.close()
            await process.wait_closed()
            _end_descendants()
        self._breakpoints.close()
        self._close_port()
        if self._requests is not None:
            self._requests.close()

    # ---- start

    def _environment(self, address: str, port: int) -> dict[str, str]:
        order = self._order
        base = {**os.environ, **order.env}
        own = variables(self._place, address, port, attempt=order.attempt, error_file=self._error.path, environ=base)
        if order.virtual_local_rank:
            own |= own_device(self._place.local_rank, base)
        self._requests = Requests(self._about_snapshots, _Program(order.control))
        ours = {
            start_program.STACKS_FILE: self._stack.path,
            start_program.DEBUGGER: self._breakpoints.address,
            start_program.DEBUGGER_FILES: os.pathsep.join((PDB_FILE, CHANNEL_FILE)),
            VARIABLE: self._requests.address,
        }
        return {**base, **own, **ours}

    async def _about_snapshots(self, request: Request) -> dict[str, Any]:
        if self._snapshots is None:
            # Most programs have no snapshots.
            from monarch.spmd.snapshot_transfer import RankSnapshots

            self._snapshots = RankSnapshots(self._place, self._order.attempt.number, self._order.control)
        return await self._snapshots.answer(request)

    async def _start(self, line: CommandLine) -> None:
        loop = asyncio.get_running_loop()
        files = self._open_files()
        try:
            for stream in (1, 2):
                self._pipes.append(OutputPipe(loop, stream, True, self._buffer, self._note))
            for pipe in self._pipes:
                if pipe.stream in files:
                    pipe.copy_name, pipe.copy = files.pop(pipe.stream)
            process = GuardedProcess()
            farewell = ((int(signal.SIGTERM), self._order.grace),)
            await process.start(line, (0, self._pipes[0].command_end, self._pipes[1].command_end), farewell=farewell)
        except BaseException:
            for pipe in self._pipes:
                pipe.close()
            raise
        finally:
            for pipe in self._pipes:
                os.close(pipe.command_end)
            for _, file in files.values():
                file.close()
        self._process = process
        if process.objection and self._place.local_rank == 0:
            self._show(f"preload has no effect: {process.objection}")
        for pipe in self._pipes:
            pipe.resume()
        process.ended.add_done_callback(self._has_ended)

    def _open_files(self) -> dict[int, tuple[str, Any]]:
        """By stream, the file that its output is copied to, and its name."""
        if self._order.log_dir is None:
            return {}
        folder = Path(self._order.workdir or "", self._order.log_dir, str(self._place.rank))
        folder.mkdir(parents=True, exist_ok=True)
        found: dict[int, tuple[str, IO[bytes]]] = {}
        for stream, name in ((1, "stdout.log"), (2, "stderr.log")):
            found[stream] = str(folder / name), _log_file(folder / name)
        return found

    def _note(self) -> None:
        self._moved = time.monotonic()
        self._news.set()

    def _show(self, text: str) -> None:
        self._buffer.put(NOTES, f"monarch: {text}\n".encode(errors="replace"))
        self._note()

    def _close_port(self) -> None:
        reserved, self._reserved = self._reserved, None
        if reserved is not None:
            reserved.close()

    # ---- the end

    async def _end(self, process: GuardedProcess, grace: float) -> None:
        self._has_raised_before = self._error.size() > 0
        process.signal(signal.SIGTERM)
        await asyncio.wait((process.ended,), timeout=grace)
        process.signal(signal.SIGKILL)

    def _has_ended(self, ended: asyncio.Future[int]) -> None:
        assert self._process is not None
        at = time.time()
        code = os.waitstatus_to_exitcode(ended.result())
        # A guard that was killed reports a signal as well, which the run has not sent.
        was_ended = self._ending is not None and self._process.was_signalled
        message, traceback, time_of = ("", "", None) if code == 0 else _exception(self._error.read(0, _LONGEST_ERROR))
        was_out_of_memory = code == -signal.SIGKILL and not was_ended and out_of_memory_kills() > self._kills
        has_lost_port = code != 0 and not was_ended and self._port is not None and _is_taken(self._port)
        raised_at = (time_of or self._error.changed_at()) if message and (self._has_raised_before or not was_ended) else None
        self._ended = Ended(code, at, was_ended, was_out_of_memory, message, traceback, has_lost_port, raised_at)
        self._breakpoints.close()
        if self._requests is not None:
            # A child of the program may have the connection still.
            self._requests.end()
        for pipe in self._pipes:
            pipe.drain()
        self._news.set()


def _missing(program: Program, workdir: str | None) -> str:
    """Why there is no program to start; empty where there is one, or where only the start itself can show it."""
    folder = workdir or os.getcwd()
    if not os.path.isdir(folder):
        return f"the directory {folder!r} is not on this host"
    if program.kind in ("script", "path") and not os.path.exists(os.path.join(folder, program.name)):
        return f"program {program.name!r} is not on this host; the directory is {folder}"
    return ""


def _exception(data: bytes) -> tuple[str, str, float | None]:
    """Text and traceback of what a program has left in its error file, in the format of torchelastic, and when, if that is there."""
    try:
        found: Any = json.loads(data.decode(errors="replace"))["message"]
        if isinstance(found, str):
            return found[:_LONGEST_MESSAGE], "", None
        more = found.get("extraInfo", {})
        at = more.get("raised_at")
        text = str(more.get("py_callstack", ""))[-_LONGEST_TRACEBACK:]
        return str(found["message"])[:_LONGEST_MESSAGE], text, at if isinstance(at, float) else None
    except (ValueError, KeyError, TypeError, AttributeError):  # no record, or one of another format
        return "", "", None


class _Unnamed:
    """A file in memory; other processes of this user open it by its path as long as this process lives."""

    def __init__(self, name: str) -> None:
        self._fd = os.memfd_create(name)
        self.path = f"/proc/{os.getpid()}/fd/{self._fd}"

    def __del__(self) -> None:
        os.close(self._fd)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def changed_at(self) -> float:
        return os.fstat(self._fd).st_mtime

    def read(self, begin: int, most: int) -> bytes:
        return os.pread(self._fd, most, begin)


def _is_taken(port: int) -> bool:
    """Whether a process of this host listens on the port."""
    for family, address in ((socket.AF_INET, ""), (socket.AF_INET6, "")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((address, port))
                probe.listen()
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return True
    return False


def _end_descendants() -> None:
    """Kills all processes below this one: programs may have left some in sessions of their own."""
    for _ in range(_SWEEPS):
        left = _descendants(os.getpid())
        if not left:
            return
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except OSError:  # the parent is not this process, but a process that is about to become its child
                continue


# A process that is killed may have forked just before.
_SWEEPS = 5


def _descendants(root: int) -> list[int]:
    parents: dict[int, int] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:  # the process has ended
            continue
        if fields[0] != b"Z" or int(fields[1]) == root:
            parents[int(name)] = int(fields[1])
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found - {root})
