"""The program between a proc and a command: it starts the command, delivers signals, and kills all remaining descendants.

    python -I -S guard.py FD

FD is a stream socket to the proc. The proc sends the specification first; then each byte is the number of a signal for the
command's group, 9 for all its descendants. It gets `("forked", pid)`, then `("started",)` or `("failed", errno, word)`, and at the end
`("ended", status, signalled)`: whether a signal of the proc came before the command's end. Without a fork there is only `failed`.

The guard is a process of its own, because a proc that is killed cannot clean up, and because a process that forks and reaps should have
one thread. The guard is the reaper of all descendants of the command, so none escapes a kill; the kernel kills the command when the
guard ends. When a command ends by itself, its group is killed a moment later; a process in a session of its own stays. After a signal
from the proc, all descendants of the command end with it, in any session. The guard imports no module of Monarch and few modules of
Python, since every command waits for it.

The command may kill or stop its parent, the guard. The program is two processes therefore: the watchdog, and the guard as its child. The
watchdog continues a stopped guard. It becomes the reaper of the descendants of a killed guard and kills them. A guard whose watchdog
is killed ends the command. The kernel continues either process, if it is stopped, when its parent ends. The proc continues a stopped
watchdog.
"""

from __future__ import annotations

import errno
import marshal
import os
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import Any
else:
    import _signal as signal  # without the enumerations that `signal` creates first

# Seconds that the processes left in the command's group may continue, e.g. to write the input of a pipe to a file.
LINGER = 1.0
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_TIOCSCTTY = 0x540E


def frame(message: Any) -> bytes:
    """A message in either direction: its length, then its marshalled value."""
    body = marshal.dumps(message)
    return len(body).to_bytes(4, "little") + body


class Guard:
    """One command. The object begins in the watchdog, which forks the guard."""

    def __init__(self, control: int, is_prepared: bool = False) -> None:
        import ctypes

        # This process is a fork of an interpreter with modules, and so is the command.
        self.is_prepared = is_prepared
        # In the process of a command that is such a fork: its specification.
        self.program: dict[str, Any] | None = None
        self.control = control
        self.prctl = ctypes.CDLL(None).prctl
        self.pid = 0
        self.status: int | None = None
        # The proc has sent a signal: no descendant of the command may stay.
        self.is_ended_by_proc = False
        self.folder: str | None = None
        self.wake = -1
        self.watchdog = os.getpid()

    def serve(self) -> int:
        """Runs in both processes; returns the exit code of each."""
        self.prctl(_PR_SET_PDEATHSIG, int(signal.SIGCONT), 0, 0, 0)
        received = self._descriptors() if self.is_prepared else []
        spec = self._specification()
        if spec is None:
            return 0
        if self.is_prepared:
            fds: tuple[int, ...] = spec["fds"]
            numbers = dict(zip(sorted({*fds} - {0, 1, 2}), received, strict=True))
            spec["fds"] = tuple(numbers.get(fd, fd) for fd in fds)
        if spec["script"] is not None:
            self.folder = spec["folder"]
        for fd in {self.control, *spec["fds"]} - {0, 1, 2}:
            os.set_inheritable(fd, False)
        self.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            guard = os.fork()
        except OSError as e:
            self._report(("failed", e.errno or errno.EAGAIN, sys.executable))
            return 0
        # The watchdog and the guard each have their own pipe.
        self.wake, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, _noticed)
        signal.signal(signal.SIGCONT, _noticed)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        if guard:
            for fd in {*spec["fds"]} - {0, 1, 2}:
                os.close(fd)
            return self._watch(guard)
        try:
            # The guard does not inherit this setting from the watchdog.
            self.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            self.prctl(_PR_SET_PDEATHSIG, int(signal.SIGCONT), 0, 0, 0)
            if not self._is_alone():
                self._run(spec)
        finally:
            if self.program is None:
                self._remove_script()
                if not self._is_alone():
                    os.kill(self.watchdog, signal.SIGCONT)
        return 0

    def _watch(self, guard: int) -> int:
        """The watchdog: waits for the guard's end, then kills the descendants of a guard that did not end by itself."""
        while True:
            found = os.waitid(os.P_PID, guard, os.WEXITED | os.WSTOPPED)
            if found is not None and found.si_code in (os.CLD_EXITED, os.CLD_KILLED, os.CLD_DUMPED):
                break
            os.kill(guard, signal.SIGCONT)
        if (found.si_code, found.si_status) == (os.CLD_EXITED, 0):
            return 0
        self._kill_all()
        self._remove_script()
        return 1

    def _is_alone(self) -> bool:
        """In the guard: whether the watchdog has ended."""
        return os.getppid() != self.watchdog

    def _run(self, spec: dict[str, Any]) -> None:
        try:
            argv = self._argv(spec)
            self.pid = self._start(argv, spec)
        except OSError as e:
            self._report(("failed", e.errno or errno.EIO, str(e.filename or spec["argv"][0] or spec["script"][0])))
            return
        finally:
            for fd in {*spec["fds"]} - {0, 1, 2}:
                os.close(fd)
        if self.program is not None:
            return
        self._report(("started",))
        orphaned = self._until_ended()
        if orphaned:
            self._wind_down(spec["farewell"])
        else:
            self._sweep()
            self._remove_script()
            self._report(("ended", self.status, self.is_ended_by_proc))

    # ---- the proc

    def _descriptors(self) -> list[int]:
        """The descriptors of the command, which a prepared guard receives before the specification."""
        import _socket
        import array

        control = _socket.socket(fileno=os.dup(self.control))
        _, ancillary, _, _ = control.recvmsg(1, _socket.CMSG_SPACE(3 * 4), _socket.MSG_CMSG_CLOEXEC)
        control.close()
        found = array.array("i")
        for _, _, body in ancillary:
            found.frombytes(body[: len(body) - len(body) % found.itemsize])
        return list(found)

    def _specification(self) -> dict[str, Any] | None:
        size = self._exactly(4)
        body = self._exactly(int.from_bytes(size, "little")) if len(size) == 4 else b""
        return marshal.loads(body) if body else None

    def _exactly(self, count: int) -> bytes:
        found = bytearray()
        while len(found) < count:
            piece = os.read(self.control, count - len(found))
            if not piece:
                return b""
            found += piece
        return bytes(found)

    def _report(self, message: Any) -> None:
        try:
            data = memoryview(frame(message))
            while data:
                data = data[os.write(self.control, data) :]
        except OSError:  # the proc has ended
            return

    # ---- the command

    def _argv(self, spec: dict[str, Any]) -> list[str]:
        """The words of the command, with the path of the script that came with it, if one did."""
        argv: list[Any] = spec["argv"]
        if self.folder is None:
            return argv
        name, text = spec["script"]
        os.mkdir(self.folder, 0o700)
        path = os.path.join(self.folder, name)
        try:
            with open(path, "xb", opener=lambda p, flags: os.open(p, flags, 0o700)) as file:
                file.write(text)
        except OSError as e:  # a full disk shows in the write, whose error has no name
            raise OSError(e.errno, os.strerror(e.errno or errno.EIO), path) from None
        return [path if word is None else word for word in argv]

    def _start(self, argv: list[str], spec: dict[str, Any]) -> int:
        """Forks and executes; raises the child's error."""
        read, write = os.pipe2(os.O_CLOEXEC)
        gate, opened = os.pipe2(os.O_CLOEXEC)
        guard = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become(argv, spec, guard, write, gate)
            return 0
        os.close(write)
        # The proc learns the pid before the command can kill its guard.
        self._report(("forked", pid))
        os.write(opened, b"!")
        os.close(opened)
        os.close(gate)
        if not spec["tty"]:
            try:  # in both processes, so that the setting holds whichever runs first
                os.setpgid(pid, pid)
            except OSError:
                pass
        with open(read, "rb") as pipe:
            wrong = pipe.read()
        if wrong:
            os.waitpid(pid, 0)
            number, word = marshal.loads(wrong)
            raise OSError(number, os.strerror(number), word)
        return pid

    def _become(self, argv: list[str], spec: dict[str, Any], guard: int, report: int, gate: int) -> None:
        word = spec["workdir"] or ""
        try:
            if spec["tty"]:
                os.setsid()
            else:
                os.setpgid(0, 0)
            self.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
            if os.getppid() != guard:  # the guard had ended before that
                os._exit(1)
            # A fork of an interpreter has the handlers that its modules have installed.
            changed = set[int]() if self.is_prepared else signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
            for number in changed:
                try:
                    signal.signal(number, signal.SIG_DFL)
                except (OSError, ValueError):  # a signal that the C library reserves
                    continue
            for target, fd in enumerate(spec["fds"]):
                os.dup2(fd, target, inheritable=True)
            if spec["tty"]:
                import fcntl

                fcntl.ioctl(0, _TIOCSCTTY, 0)
            if spec["workdir"]:
                os.chdir(spec["workdir"])
            os.read(gate, 1)
            if self.is_prepared:
                self.program = spec
                return
            word = argv[0]
            name = spec["program_name"]
            os.execvpe(argv[0], [name, *argv[1:]] if name else argv, spec["env"])
        except OSError as e:
            os.write(report, marshal.dumps((e.errno or errno.EIO, word)))
        except ValueError:  # a null byte in a word
            os.write(report, marshal.dumps((errno.EINVAL, word)))
        finally:
            if self.program is None:
                os._exit(127)

    # ---- the end

    def _until_ended(self) -> bool:
        """Returns when the command has ended, with False, or when the proc has ended, with True."""
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        poll.register(self.wake, select.POLLIN)
        while True:
            self._reap()
            if self.status is not None:
                return False
            for fd, _ in poll.poll():
                if fd == self.wake:
                    os.read(self.wake, 4096)
                    if self._is_alone():
                        self.is_ended_by_proc = True
                        self._kill_all()
                elif self._obey():
                    return True

    def _obey(self) -> bool:
        try:
            numbers = os.read(self.control, 64)
        except OSError:
            numbers = b""
        # A signal that arrives after the command has ended by itself does not count as the cause of its end.
        self._reap()
        for number in numbers if self.status is None else b"":
            self.is_ended_by_proc = True
            if number == signal.SIGKILL:
                self._kill_all()
            else:
                self._signal(number)
        return not numbers

    def _signal(self, number: int) -> None:
        try:
            os.killpg(self.pid, number)
        except OSError:  # the group is empty
            return

    def _reap(self) -> bool:
        """Reaps exited processes; false if no descendants are left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.pid:
                self.status = status

    def _group_lives(self) -> bool:
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        except OSError:  # the process exists and belongs to another user
            return True
        return True

    def _sleep(self, seconds: float) -> None:
        """Waits until a child ends, at most `seconds`."""
        ready, _, _ = select.select([self.wake], [], [], max(0.0, seconds))
        if ready:
            os.read(self.wake, 4096)

    def _sweep(self) -> None:
        """Kills the group of the ended command, and all other descendants if the proc has ended the command."""
        end = time.monotonic() + LINGER
        if self.is_ended_by_proc:
            for pid in descendants(os.getpid()):
                self._signal_one(pid, signal.SIGTERM)
        while self._reap() and (self.is_ended_by_proc or self._group_lives()):
            left = end - time.monotonic()
            if left <= 0 and self.is_ended_by_proc:
                self._kill_all()
                return
            if left <= 0:
                self._signal(signal.SIGKILL)
            # The last process is awaited after the kill; a process in a system call of the kernel may take time.
            self._sleep(left if left > 0 else 0.1)
            if left < -LINGER:
                return

    def _wind_down(self, farewell: list[tuple[int, float]]) -> None:
        """After the proc's end: sends these signals with their pauses, then kills all descendants of the command."""
        for number, pause in farewell:
            self._signal(number)
            end = time.monotonic() + pause
            while self._reap() and (left := end - time.monotonic()) > 0:
                self._sleep(left)
        self._kill_all()

    def _kill_all(self) -> None:
        # A process that loses its parent becomes a child of the guard, so the guard reaps all. A process that the kernel blocks is given
        # up.
        end = time.monotonic() + 2 * LINGER
        while self._reap() and time.monotonic() < end:
            for pid in descendants(os.getpid()):
                self._signal_one(pid, signal.SIGKILL)
            self._sleep(0.1)

    def _signal_one(self, pid: int, number: int) -> None:
        try:
            os.kill(pid, number)
        except OSError:  # the process has ended meanwhile, or belongs to another user
            return

    def _remove_script(self) -> None:
        if self.folder is not None:
            import shutil

            shutil.rmtree(self.folder, ignore_errors=True)


def descendants(root: int) -> list[int]:
    """All processes below `root`, as the kernel lists them now."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue  # the process has ended meanwhile
            children.setdefault(parent, []).append(int(name))
    found: list[int] = []
    pending = [root]
    while pending:
        below = children.get(pending.pop(), [])
        found += below
        pending += below
    return found


def serve_prepared(control: int) -> dict[str, Any]:
    """Serves as the guard in a fork of an interpreter; gives the specification in the process that has to become the command."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)
    _handle_signals()
    guard = Guard(control, True)
    code = guard.serve()
    if guard.program is None:
        os._exit(code)
    signal.set_wakeup_fd(-1)
    return guard.program


def _noticed(number: int, frame: object) -> None:
    """A handler that does nothing. An ignored signal would stay ignored in the command."""


def _handle_signals() -> None:
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        # These signals are for the command, which gets its own.
        signal.signal(number, _noticed)


def main() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    _handle_signals()
    sys.exit(Guard(int(sys.argv[1])).serve())


if __name__ == "__main__":
    main()
