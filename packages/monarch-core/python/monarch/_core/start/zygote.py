"""The zygote, from which procs are forked: single-threaded, with all modules imported that a proc needs.

It exchanges frames with its agent over descriptor 0: `u32 length, u8 kind, u8 operation, u64 proc, body`. A fork request carries the
proc's link, stdout and stderr. When the link to the agent ends, the zygote ends, and the kernel ends its children.
"""

from __future__ import annotations

import _socket
import array
import errno
import gc
import marshal
import os
import select
import sys

from monarch._core._native import set_parent_death_signal, thread_limit
from monarch._core.hosts.bootstrap_command import default_arguments as proc_arguments
from monarch._core.hosts.bootstrap_command import environment_arguments
from monarch._core.process.title import set_title
from monarch._core.process.workspace_variables import BELOW
from monarch._core.start import proc_main, shared_modules
from monarch._core.sync import path as workspace_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import Any

    from monarch._core.start.preloaders import Preloader, Preloaders
else:
    import _signal as signal  # without the enumerations that `signal` creates first

_RAW = 5
_FORK, _EXEC, _KILL, _JOB_ENDED = 1, 2, 3, 4
_STARTED, _EXITED, _FAILED, _PRELOADED = 1, 2, 3, 4
# The length of the plan of a command with modules.
_WITH_MODULES = 7
_READ = 1 << 18
_MAX_FDS = 64
# The number of procs that are forked before the modules that most procs need are imported: asyncio takes a proc 13 ms.
FEW = 4
# Signals that the interpreter ignores in every process.
_PYTHONS = {signal.SIGPIPE, signal.SIGXFSZ}
# Milliseconds without a further request after which imports continue.
PAUSE = 30


class Zygote:
    def __init__(self, sock: Any) -> None:
        self.sock = sock
        self.buffer = bytearray()
        self.fds: list[int] = []
        self.children: dict[int, int] = {}
        self.pids: dict[int, int] = {}
        # Modules that are imported while there are no requests.
        self.rest = [*proc_main.REST, *proc_main.LAST]
        # A client under `nohup`, or in the background of a script, ignores signals. It and this process continue to; procs do not.
        self.ignored = [number for number in signal.valid_signals() - _PYTHONS if signal.getsignal(number) == signal.SIG_IGN]
        # None until a proc with modules is requested.
        self.preloaders: Preloaders | None = None

    def serve(self) -> tuple[bytes, int] | None:
        """Serves until the agent is gone; in a forked child, gives its setup and link instead."""
        read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _woken)
        while True:
            preloaded = {} if self.preloaders is None else self.preloaders.descriptors()
            poll = select.poll()
            for fd in (self.sock.fileno(), read, *preloaded):
                poll.register(fd, select.POLLIN)
            events = poll.poll(self.poll_timeout())
            if not events and self.rest:
                self.preload_step()
            if self.preloaders is not None:
                self.preloaders.check_times()
            for fd, _ in events:
                if fd in preloaded:
                    self.receive_preloaded(preloaded[fd])
                elif fd == read:
                    try:
                        os.read(read, 4096)
                    except BlockingIOError:
                        pass
                    self.reap()
                elif not self.receive():
                    return None
            # A few procs are forked at once. Of many procs, each would import what its actors need.
            if events and len(self.pids) >= FEW:
                while len(self.rest) > len(proc_main.LAST):
                    self.preload_step()
            child = self.start_ordinary()
            while child is None and (frame := self.next_frame()) is not None:
                child = self.handle(frame) or self.start_ordinary()
            if child is not None:
                os.close(read)
                os.close(write)
                return child

    def poll_timeout(self) -> int | None:
        """Milliseconds to wait for requests before the next import: requests seldom come alone."""
        bounds = [] if self.preloaders is None else [self.preloaders.timeout()]
        if self.rest:
            bounds.append(PAUSE if self.pids or self.preloaders is not None else 0)
        return min((bound for bound in bounds if bound is not None), default=None)

    def preload_step(self) -> None:
        proc_main.preload(self.rest[:1])
        del self.rest[0]
        if len(self.rest) in (len(proc_main.LAST), 0):
            freeze()

    def receive(self) -> bool:
        room = _socket.CMSG_SPACE(_MAX_FDS * 4)
        try:
            data, ancillary, _, _ = self.sock.recvmsg(_READ, room, _socket.MSG_CMSG_CLOEXEC)
        except InterruptedError:
            return True
        except OSError:
            return False
        for level, kind, body in ancillary:
            if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
                found = array.array("i")
                found.frombytes(body[: len(body) - len(body) % found.itemsize])
                self.fds += found
        self.buffer += data
        return bool(data)

    def next_frame(self) -> bytes | None:
        buffer = self.buffer
        if len(buffer) < 4:
            return None
        length = int.from_bytes(buffer[:4], "little")
        if len(buffer) < 4 + length:
            return None
        frame = bytes(buffer[4 : 4 + length])
        del buffer[: 4 + length]
        return frame

    def send(self, operation: int, uid: int, body: bytes) -> None:
        frame = bytes([_RAW, operation]) + uid.to_bytes(8, "little") + body
        try:
            self.sock.sendall(len(frame).to_bytes(4, "little") + frame)
        except OSError:  # the agent is gone, which the next read reports too
            return

    def handle(self, frame: bytes) -> tuple[bytes, int] | None:
        if frame[0] != _RAW:
            return None
        operation, uid, body = frame[1], int.from_bytes(frame[2:10], "little"), frame[10:]
        if operation == _KILL:
            pid = self.pids.get(uid)
            number = int.from_bytes(body[:4], "little")
            if pid is not None:
                os.kill(pid, number)
            elif self.preloaders is not None and self.preloaders.killed(uid):
                self.send(_EXITED, uid, number.to_bytes(4, "little"))
            return None
        if operation == _JOB_ENDED:
            if self.preloaders is not None:
                self.preloaders.job_ended(uid)
            return None
        fds, self.fds = self.fds[:3], self.fds[3:]
        if operation == _EXEC and len(plan := marshal.loads(body)) == _WITH_MODULES:
            self.request_preloaded(uid, plan, fds)
            return None
        return self.start(operation == _EXEC, uid, body, fds)

    def request_preloaded(self, uid: int, plan: tuple[Any, ...], fds: list[int]) -> None:
        if self.preloaders is None:
            from monarch._core.start.preloaders import Preloaders

            self.preloaders = Preloaders(run_command, lambda job, body: self.send(_PRELOADED, job, body), self.reset_signals)
        self.preloaders.request(uid, plan, fds)

    def receive_preloaded(self, preloader: Preloader) -> None:
        assert self.preloaders is not None
        for uid, pid in self.preloaders.receive(preloader):
            self.children[pid] = uid
            self.pids[uid] = pid
            self.send(_STARTED, uid, pid.to_bytes(4, "little"))

    def start_ordinary(self) -> tuple[bytes, int] | None:
        """Starts the procs that no preloaded interpreter starts."""
        while self.preloaders is not None and self.preloaders.ordinary:
            child = self.start(*self.preloaders.ordinary.pop(0))
            if child is not None:
                return child
        return None

    def start(self, is_command: bool, uid: int, body: bytes, fds: list[int]) -> tuple[bytes, int] | None:
        parent = os.getpid()
        shared_modules.share()
        try:
            pid = os.fork()
        except OSError as e:
            for fd in fds:
                os.close(fd)
            limit = thread_limit() if e.errno == errno.EAGAIN else ""
            self.send(_FAILED, uid, f"cannot fork a process: {e.strerror}{limit}".encode())
            return None
        if pid:
            for fd in fds:
                os.close(fd)
            self.children[pid] = uid
            self.pids[uid] = pid
            self.send(_STARTED, uid, pid.to_bytes(4, "little"))
            return None
        self.become_child(parent, fds)
        if is_command:
            run_command(marshal.loads(body), fds[0])
        return body, fds[0]

    def reset_signals(self) -> None:
        """In a forked child: gives it the handlers with which an interpreter starts."""
        signal.set_wakeup_fd(-1)
        for number in self.ignored:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def become_child(self, parent: int, fds: list[int]) -> None:
        self.reset_signals()
        if not set_parent_death_signal(parent):
            os._exit(1)
        os.setpgid(0, 0)
        os.dup2(fds[1], 1)
        os.dup2(fds[2], 2)
        for fd in (*fds[1:], *self.fds):
            os.close(fd)
        if self.preloaders is not None:
            self.preloaders.close()
        self.sock.close()

    def kill_group(self, pid: int) -> None:
        """Kills the processes that a child has left running."""
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:  # the child died before it had a group
            return

    def reap(self) -> None:
        while self.children or self.preloaders is not None:
            try:
                # The group is killed before the child is reaped: until then the child's number identifies its process group and no other.
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if ended is None:
                    return
                if self.preloaders is not None and ended.si_pid not in self.children:
                    # The report of a proc comes before its end.
                    for preloader in list(self.preloaders.by_pid.values()):
                        self.receive_preloaded(preloader)
                if ended.si_pid in self.children:
                    self.kill_group(ended.si_pid)
                elif self.preloaders is not None:
                    self.preloaders.ended(ended.si_pid)
                pid, status = os.waitpid(ended.si_pid, 0)
            except ChildProcessError:
                return
            uid = self.children.pop(pid, None)
            if uid is not None:
                self.pids.pop(uid, None)
                self.send(_EXITED, uid, status.to_bytes(4, "little", signed=True))


def _woken(*_: object) -> None:
    """The handler of SIGCHLD. Only the byte in the wake-up pipe matters."""


def run_command(plan: tuple[Any, ...], link: int, preload: dict[str, Any] | None = None) -> None:
    """Executes the program that later runs `proc_main.main`; does not return. With `preload` it becomes a preloaded interpreter."""
    argv, program, inherit, changes, cwd, setup = plan
    # On another host the base is the environment of the agent, with the requested changes.
    env: dict[str, str] = {k: v for k, v in {**(os.environ if inherit else {}), **changes}.items() if v is not None}
    if program is None:
        # On another host the program is the agent's own interpreter.
        program = sys.executable
        argv = [program, *proc_arguments()]
    workspace = workspace_path.of_job(marshal.loads(setup)[4])
    if program.startswith(BELOW):
        program = workspace_path.expanded(program, workspace)
        argv = [program, *argv[1:]] if argv else []
    if not argv:
        # An interpreter finds its venv by the name under which it was started.
        argv = [program, *environment_arguments()]
    if preload is not None and preload["programs"]:
        # The streams of programs are not buffered.
        argv = [argv[0], "-u", *argv[1:]]
    memory = os.memfd_create("monarch-setup")
    view = memoryview(setup if preload is None else marshal.dumps(preload))
    while view:
        view = view[os.write(memory, view) :]
    os.lseek(memory, 0, os.SEEK_SET)
    # These variables come from this host's agent; the others are the client's.
    env.update(workspace_path.variables(workspace))
    env[proc_main.FDS_VARIABLE if preload is None else proc_main.PRELOAD_VARIABLE] = f"{link},{memory}"
    for fd in (link, memory):
        os.set_inheritable(fd, True)
    try:
        for number in _PYTHONS:
            signal.signal(number, signal.SIG_DFL)
        if cwd is not None:
            os.chdir(cwd)
        os.execvpe(program, argv, env)
    except OSError as e:
        os.write(2, f"cannot run {program}: {e.strerror}\n".encode(errors="backslashreplace"))
    os._exit(proc_main.NO_PROGRAM)


def close_inherited() -> None:
    for name in os.listdir("/dev/fd"):
        fd = int(name)
        if fd > 2:
            try:
                os.close(fd)
            except OSError:  # the descriptor was the one that listed them
                continue


def freeze() -> None:
    """Freezes all objects, so that their pages stay shared with the children until a process writes to them."""
    gc.collect()
    gc.freeze()


def main() -> None:
    parent = os.getppid()
    if not set_parent_death_signal(parent):
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The thread that started this process may block all signals, SIGCHLD too.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # Procs must not inherit the client's open descriptors; only descriptor 0 is for this process.
    close_inherited()
    sock = _socket.socket(fileno=os.dup(0))
    os.set_inheritable(sock.fileno(), False)
    sock.setblocking(True)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    set_title("monarch-zygote")
    shared_modules.prepare()
    proc_main.preload()
    freeze()
    child = Zygote(sock).serve()
    if child is None:
        os._exit(0)
    setup, link = child
    code = proc_main.run(setup, link)
    shared_modules.is_orderly = code == 0
    sys.exit(code)
