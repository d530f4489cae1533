"""The actor that runs one command in one proc of a host, and the folder that keeps the output of its rank there.

The folders of `monarch exec` in a host's folder for temporary files go with the worker of the host. Until then the newest ones stay, older
ones are removed. A command holds a shared lock on its folder, which the kernel releases when the proc ends in whatever way. A folder is
removed by a later command that gets the lock exclusively, so output that is still being written is never removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno as errnos
import fcntl
import os
import shutil
import signal
import socket
import sys
import tempfile
from dataclasses import dataclass, field
from typing import NamedTuple

from monarch.actor import Actor, concurrent_endpoint, context
from monarch.extension import remove_with_host
from monarch.extension.command import TIMED_OUT, CannotStart, CommandLine, GuardedProcess, OutputBuffer, OutputPipe, end_in_steps, exit_code
from monarch.job._files import audit

# Seconds from SIGINT to SIGTERM, and from there to SIGKILL.
GRACE = 5.0
# The same pause if the proc itself has to end, within `cleanup_timeout`.
_LAST_GRACE = 1.0
# In the name of a folder: the placeholder of the rank's coordinates. The host's folder for temporary files may only be at the begin.
SUBDIR = "$SUBDIR"
TEMPORARY = "$TMPDIR"
# The placeholder of a program: the interpreter of the proc.
PYTHON = "-python"
Chunk = tuple[int, bytes]


@dataclass(frozen=True)
class Order:
    """A command for all ranks of a mesh. `None` in `argv` is the place of `script`."""

    argv: tuple[str | None, ...]
    env: dict[str, str]
    workdir: str | None
    # The extent in which ranks are named, and the coordinates that all running ranks share.
    sizes: dict[str, int]
    fixed: dict[str, int]
    streams: bool
    by_line: bool
    # The folder of `stdout.txt` and `stderr.txt`.
    folder: str | None
    buffered: int
    # Several processes of a host write there: the files have the rank in their names.
    is_named_by_rank: bool = False
    timeout: float | None = None
    script: tuple[str, bytes] | None = None
    grace: float = GRACE
    asked: audit.Origin = field(default_factory=audit.origin)

    def coordinates(self, own: dict[str, int]) -> dict[str, int]:
        return {label: self.fixed.get(label, own.get(label, 0)) for label in self.sizes}

    def number(self, coordinates: dict[str, int]) -> int:
        """The rank of these coordinates, in the extent that the ranks are named in."""
        rank = 0
        for label, size in self.sizes.items():
            rank = rank * size + coordinates[label]
        return rank


class Refusal(NamedTuple):
    """A command that could not be started."""

    host: str
    command: tuple[str, ...]
    errno: int
    word: str


class Command(Actor):
    """Reads are answered when there is output, so the reader decides how fast the command may print."""

    _is_system_actor = True

    def __init__(self, order: Order) -> None:
        self.order = order
        self.process: GuardedProcess | None = None
        self.buffer = OutputBuffer(order.buffered)
        self.pipes: list[OutputPipe] = []
        self.timed_out = False
        self.ending: asyncio.Task[None] | None = None
        self.code: int | None = None
        self.news = asyncio.Event()
        # The lock of the run's folder, held as long as this actor lives.
        self.held: int | None = None

    @concurrent_endpoint
    async def start(self) -> Refusal | None:
        """Starts the command; why not, if it cannot be."""
        order = self.order
        argv = words(order)
        try:
            line = CommandLine(argv, self._environment(), order.workdir, order.script)
            await self._start(line)
        except CannotStart as e:
            return self._refusal(argv, e.errno, e.word)
        except OSError as e:  # an error of the files
            return self._refusal(argv, e.errno or errnos.EIO, str(e.filename or order.folder or ""))
        self._record("begun", argv)
        if order.timeout is not None:
            asyncio.get_running_loop().call_later(order.timeout, self._time_out)
        return None

    @concurrent_endpoint
    async def read(self) -> tuple[list[Chunk], int | None]:
        """What has been printed since; with it, at the end, the exit code."""
        while self.buffer.size == 0 and (self.code is None or any(pipe.is_open for pipe in self.pipes)):
            self.news.clear()
            await self.news.wait()
        taken = self.buffer.take()
        for pipe in self.pipes:
            pipe.resume()
        if self.buffer.size or any(pipe.is_open for pipe in self.pipes):
            return taken, None
        return taken, self.code

    @concurrent_endpoint
    async def interrupt(self) -> None:
        """SIGINT, then SIGTERM, then SIGKILL."""
        self._end(self.order.grace)

    @concurrent_endpoint
    async def kill(self) -> None:
        """SIGKILL to all that descends from the command."""
        if self.process is not None:
            self.process.signal(signal.SIGKILL)

    async def __cleanup__(self, exc: Exception | None) -> None:
        await self._end_process()
        if self.held is not None:
            os.close(self.held)
            self.held = None

    async def _end_process(self) -> None:
        process = self.process
        if process is None:
            return
        if process.pid and not process.ended.done():
            if self.ending is not None:
                self.ending.cancel()
            for number in (signal.SIGINT, signal.SIGTERM):
                process.signal(number)
                await asyncio.wait((process.ended,), timeout=_LAST_GRACE)
        for pipe in self.pipes:
            pipe.close()
        process.close()
        await process.wait_closed()

    # ---- start

    async def _start(self, line: CommandLine) -> None:
        loop = asyncio.get_running_loop()
        order = self.order
        names, files = self._open_files()
        try:
            try:
                for stream in (1, 2) if order.streams else ():
                    self.pipes.append(OutputPipe(loop, stream, order.by_line, self.buffer, self.news.set))
                fds = [pipe.command_end for pipe in self.pipes] or files
                self.process = GuardedProcess()
                await self.process.start(line, (0, fds[0], fds[1]))
            finally:
                for pipe in self.pipes:
                    os.close(pipe.command_end)
            for pipe, name in zip(self.pipes, names, strict=False):
                pipe.copy, pipe.copy_name = open(files.pop(0), "wb", buffering=0), name
        except BaseException:
            for pipe in self.pipes:
                pipe.close()
            self.pipes, self.process = [], None
            raise
        finally:
            for fd in files:
                os.close(fd)
        for pipe in self.pipes:
            pipe.resume()
        self.process.ended.add_done_callback(self._ended)

    def _open_files(self) -> tuple[list[str], list[int]]:
        """Names and descriptors of the files for the output, if there are any."""
        folder = self.order.folder
        if folder is None:
            return [], []
        is_temporary, temporary = folder.startswith(TEMPORARY + "/"), tempfile.gettempdir()
        if is_temporary:
            folder = temporary + folder[len(TEMPORARY) :]
            run = folder[len(temporary) + 1 :].partition("/")[0]
            self.held = hold_folder(os.path.join(temporary, run))
        folder = os.path.join(self.order.workdir or "", folder.replace(SUBDIR, self._key()))
        os.makedirs(folder, exist_ok=True)
        if is_temporary:
            # Hosts of one machine have folders of their own in the folder of the run.
            with contextlib.suppress(OSError):  # the folder stays until it is one of the old ones
                remove_with_host(folder, os.path.relpath(folder, temporary).count("/"))
        suffix = f"_{self.order.number(self._coordinates())}" if self.order.is_named_by_rank else ""
        names = [os.path.join(folder, f"{name}{suffix}.txt") for name in ("stdout", "stderr")]
        files: list[int] = []
        try:
            for name in names:
                files.append(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o666))
        except OSError:
            for fd in files:
                os.close(fd)
            raise
        return names, files

    def _coordinates(self) -> dict[str, int]:
        return self.order.coordinates(dict(context().actor_instance.rank))

    def _key(self) -> str:
        return "_".join(f"{label}_{index}" for label, index in self._coordinates().items())

    def _environment(self) -> dict[str, str]:
        found = dict(os.environ)
        for label, index in self._coordinates().items():
            for name in (label, label.upper()):
                found[f"MONARCH_RANK_{name}"] = str(index)
                found[f"MONARCH_SIZE_{name}"] = str(self.order.sizes[label])
        return {**found, **self.order.env}

    def _record(self, outcome: str, argv: tuple[str | None, ...]) -> None:
        pid = None if self.process is None else self.process.pid
        point = self._coordinates() or None
        audit.record_here(
            self.order.asked, "host.exec", outcome, command=audit.command_line(argv), workdir=self.order.workdir, point=point, pid=pid
        )

    def _refusal(self, argv: tuple[str | None, ...], number: int, word: str) -> Refusal:
        self._record(f"cannot start {word!r}: {os.strerror(number)}", argv)
        return Refusal(socket.gethostname(), tuple(w or "<script>" for w in argv), number, word)

    # ---- the end

    def _ended(self, ended: asyncio.Future[int]) -> None:
        # A command that ended by itself just before its time was over keeps its own result.
        is_late = self.timed_out and self.process is not None and self.process.was_signalled
        self.code = TIMED_OUT if is_late else exit_code(ended.result())
        self._record(f"ended with {self.code}", words(self.order))
        for pipe in self.pipes:
            pipe.drain()
        self.news.set()

    def _time_out(self) -> None:
        if self.code is None:
            self.timed_out = True
            self._end(self.order.grace)

    def _end(self, grace: float) -> None:
        if self.ending is None and self.process is not None:
            self.ending = asyncio.get_running_loop().create_task(end_in_steps(self.process, grace))


def words(order: Order) -> tuple[str | None, ...]:
    """The words to execute: a Python file and `-m` are run by the interpreter of the proc."""
    first = order.argv[0]
    if first == PYTHON:
        return (sys.executable, *order.argv[1:])
    if first == "-m" or (first is not None and first.endswith(".py")):
        return (sys.executable, *order.argv)
    return order.argv


# The prefix of the name of a folder.
PREFIX = "monarch_exec_"
# The number of kept folders of this user on this machine, beside the ones in use.
KEPT = 20


def hold_folder(path: str) -> int:
    """Makes the folder and removes what is too old beside it; a descriptor that holds the folder until it is closed."""
    os.makedirs(path, 0o700, exist_ok=True)
    held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:  # a file system without locks
        pass
    try:
        _prune(os.path.dirname(path))
    except OSError:
        os.close(held)
        raise
    return held


def _prune(parent: str) -> None:
    found: list[tuple[float, str]] = []
    for entry in os.scandir(parent):
        if entry.name.startswith(PREFIX) and entry.is_dir(follow_symlinks=False):
            try:
                at = entry.stat(follow_symlinks=False)
            except OSError:  # removed meanwhile
                continue
            if at.st_uid == os.geteuid():
                found.append((at.st_mtime, entry.path))
    for _, path in sorted(found)[:-KEPT]:
        _remove_unused(path)


def _remove_unused(path: str) -> None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:  # removed meanwhile
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    except OSError:  # in use, or a file system without locks
        return
    finally:
        os.close(fd)
