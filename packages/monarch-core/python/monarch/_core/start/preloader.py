"""A preloaded interpreter: it imports modules once, and procs with them are forked from it. `preloaders.py` is the zygote's side.

The imports run as in a fresh interpreter of the proc: with its environment, its working directory and its import path. Then the
interpreter is examined (`import_check.py`) for what a fork cannot carry; if there is something, it reports this and starts no proc.
A request brings the descriptors of a proc. The fork goes through a process that ends at once, so that the proc becomes a child of the
zygote. The proc reports itself, waits for the zygote at its gate, and runs as if it had been forked from the zygote.

What always holds: this process has one thread and writes to no stream after its imports.
"""

from __future__ import annotations

import _socket
import array
import atexit
import contextlib
import gc
import marshal
import os
import socket
import sys
import threading
import time

from monarch._core._native import set_parent_death_signal
from monarch._core.extension import command_guard, prepared_guard
from monarch._core.process.title import set_title
from monarch._core.start import preloaded_program, preloaders, proc_main
from monarch._core.start.import_check import ImportCheck, Uncarried, check_names
from monarch._core.sync import path as workspace_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

_UID = 8
_MAX_FDS = 16
# The procs that one intermediate process forks: they begin when it has ended.
_BATCH = 8


def main(own_path: list[str], own_modules: frozenset[str]) -> tuple[bytes, int, Callable[[], None]]:
    """Serves until the zygote has ended; in a proc, gives the arguments of `proc_main.run`. The interpreter and programs end in here.

    `own_path` and `own_modules` are those of the interpreter at its start.
    """
    sock, memory = (int(fd) for fd in os.environ.pop(proc_main.PRELOAD_VARIABLE).split(","))
    with open(memory, "rb") as file:
        preload = marshal.loads(file.read())
    os.set_inheritable(sock, False)
    zygote = os.getppid()
    if not set_parent_death_signal(zygote):
        os._exit(0)
    set_title("monarch-preload", *preload["modules"])
    preloader = Preloader(_socket.socket(fileno=sock), zygote, preload)
    try:
        preloader.import_all(own_path, own_modules)
    except Uncarried as e:
        preloader.send(preloaders.REFUSED, str(e).encode(errors="replace")[: preloaders.LONGEST_REASON])
        os._exit(0)
    preloader.send(preloaders.READY, b"")
    proc = preloader.serve()
    if proc is None:
        os._exit(0)
    if preload["programs"]:
        # Only the program has the traces of the imports: the proc's own environment is that of a proc without modules.
        if (program := preloader.fork_guard(proc[1])) is not None:
            preloaded_program.run(program, own_path, preloader.check)
        _end(proc_main.run(*proc))
    preloader.check.begin_process()
    return (*proc, preloader.check.apply_changes)


def _end(code: int) -> NoReturn:
    """Ends a proc whose program has run in another process.

    Exit handlers run. Objects are not destroyed: this process has run no code of users, and the teardown of `torch` takes 0.1 s in Python
    and 0.2 s in the destructors of its libraries.
    """
    threading._shutdown()  # pyright: ignore
    atexit._run_exitfuncs()  # pyright: ignore
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


class Preloader:
    def __init__(self, sock: Any, zygote: int, preload: dict[str, Any]) -> None:
        self.sock, self.zygote, self.preload = sock, zygote, preload
        self.check = ImportCheck(sock.fileno())
        self.fds: list[int] = []
        self.environment: dict[str, str] = {}

    def send(self, kind: int, body: bytes) -> None:
        try:
            self.sock.send(bytes([kind]) + body)
        except OSError:  # the zygote has ended, and with it this process
            os._exit(0)

    def import_all(self, own_path: list[str], own_modules: frozenset[str]) -> None:
        """Imports the modules; `Uncarried` for what a fork of this process could not carry."""
        proc_main.preload()
        modules = self.preload["modules"]
        workspace_path.keep(workspace_path.of_job(self.preload["job"]))
        if self.preload["programs"]:
            folders = [_folder(path) for path in self.preload["path"]]
            sys.path[:] = [*folders, *own_path]
            for folder in folders:
                check_names(folder, own_modules)
        else:
            proc_main.take_path(self.preload["path"], self.preload["is_whole_path"])
            workspace_path.accept(self.preload["workspace"])
        self.environment = dict(os.environ)
        proc_main.new_main()
        with self.check:
            for name in modules:
                self.send(preloaders.IMPORTS, name.encode())
                self.check.import_one(name)
            self.send(preloaders.IMPORTS, b"")
        proc_main.preload((*proc_main.REST, *proc_main.LAST))
        gc.collect()
        gc.freeze()
        self.check.try_fork()

    def fork_guard(self, link: int) -> dict[str, Any] | None:
        """Forks the guard of a program, from this process before it has threads; gives the specification in the program."""
        ours, theirs = _socket.socketpair()
        pid = os.fork()
        if pid == 0:
            ours.close()
            os.close(link)
            return command_guard.serve_prepared(theirs.detach())
        theirs.close()
        varying = frozenset(self.preload["programs"])
        sock = socket.socket(fileno=ours.detach())
        prepared_guard.keep(prepared_guard.PreparedGuard(pid, sock, self.environment, frozenset(self.check.read), varying))
        return None

    def serve(self) -> tuple[bytes, int] | None:
        while True:
            uids = self.requests()
            if not uids:
                return None
            if (changed := self.check.changed_file()) is not None:
                for uid in uids:
                    self.send(preloaders.STALE, uid + changed.encode(errors="replace")[: preloaders.LONGEST_REASON])
                self.close_fds()
                continue
            for at in range(0, len(uids), _BATCH):
                child = self.fork(uids, at)
                if child is not None:
                    return child
            self.close_fds()

    def requests(self) -> list[bytes]:
        """The requests that have arrived, at least one; none if the zygote has ended. Each has `_PER_PROC` descriptors in `fds`."""
        uids: list[bytes] = []
        while True:
            try:
                room = _socket.CMSG_SPACE(_MAX_FDS * 4)
                flags = _socket.MSG_CMSG_CLOEXEC | (_socket.MSG_DONTWAIT if uids else 0)
                packet, ancillary, _, _ = self.sock.recvmsg(64, room, flags)
            except BlockingIOError:
                return uids
            except OSError:
                return []
            found = array.array("i")
            for _, _, body in ancillary:
                found.frombytes(body[: len(body) - len(body) % found.itemsize])
            if not packet:
                return []
            if len(found) != _PER_PROC:  # this process has too many open files
                for fd in found:
                    os.close(fd)
                self.send(preloaders.FAILED, packet[:_UID])
                continue
            self.fds += found
            uids.append(packet[:_UID])

    def close_fds(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.fds = []

    def fork(self, uids: list[bytes], at: int) -> tuple[bytes, int] | None:
        """Forks some procs by an intermediate process, so that they become children of the zygote."""
        batch = uids[at : at + _BATCH]
        try:
            intermediate = os.fork()
        except OSError:
            for uid in batch:
                self.send(preloaders.FAILED, uid)
            return None
        if intermediate:
            os.waitpid(intermediate, 0)
            return None
        parent = os.getpid()
        for index, uid in enumerate(batch, at):
            try:
                child = os.fork()
            except OSError:
                self.send(preloaders.FAILED, uid)
                continue
            if child == 0:
                own = self.fds[index * _PER_PROC : (index + 1) * _PER_PROC]
                return self.become_proc(uid, own, parent)
        os._exit(0)

    def become_proc(self, uid: bytes, own: list[int], intermediate: int) -> tuple[bytes, int]:
        # The kernel announces no new parent. The old one ends within the forks of its batch.
        while os.getppid() == intermediate:
            time.sleep(0.0005)
        if not set_parent_death_signal(self.zygote):
            os._exit(1)
        os.setpgid(0, 0)
        link, out, error, memory, gate = own
        for fd in self.fds:
            if fd not in own:
                os.close(fd)
        self.send(preloaders.STARTED, uid + os.getpid().to_bytes(4, "little"))
        if os.read(gate, 1) != b"!":
            os._exit(0)
        os.dup2(out, 1)
        os.dup2(error, 2)
        with open(memory, "rb") as file:
            setup = file.read()
        for fd in (out, error, gate):
            os.close(fd)
        self.sock.close()
        return setup, link


def _folder(path: str) -> str:
    """The folder that a program finds first: the path, or that of its file behind all links."""
    found = os.path.realpath(path)
    return found if os.path.isdir(found) else os.path.dirname(found)


# Link, stdout, stderr, set-up and gate.
_PER_PROC = 5
