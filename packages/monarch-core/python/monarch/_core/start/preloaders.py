"""The preloaded interpreters of a host, as its zygote sees them: one for each job, command, environment, import path and list of modules.

A preloaded interpreter is a child of the zygote that has imported the modules (`preloader.py`). A request for a proc goes to it with the
proc's descriptors, and waits while it imports. The proc is forked there, becomes a child of the zygote, and reports itself; it begins when
the zygote has answered through its gate. So the zygote decides which process is the proc, whenever a preloaded interpreter is stopped or
killed. A request that a preloaded interpreter refuses, or does not answer in time, is started the ordinary way, and the reason is a part
of the set-up of the first such proc.
"""

from __future__ import annotations

import _socket
import marshal
import os
import time

from monarch._core._native import set_parent_death_signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
    from typing import Any, NamedTuple

    class Start(NamedTuple):
        """A start the ordinary way: `is_command` selects the command of the plan instead of a fork of the zygote."""

        is_command: bool
        uid: int
        body: bytes
        fds: list[int]
else:
    import _signal as signal
    from collections import namedtuple

    Start = namedtuple("Start", "is_command uid body fds")

# Messages of a preloaded interpreter: the first byte of a packet. All but READY and REFUSED begin with a uid of 8 bytes.
STARTED, FAILED, STALE, READY, REFUSED, IMPORTS = 1, 2, 3, 4, 5, 6
# Seconds that modules may take if a proc may take any time.
_IMPORT_TIMEOUT = 120.0
# Seconds without an answer to a request. A fork takes milliseconds; a machine that swaps takes seconds.
_ANSWER_TIMEOUT = 10.0
# The requests that an interpreter has at a time. Their descriptors have to fit below its limit of open files, and their packets into the
# buffer of its socket: the zygote never waits for a stopped interpreter.
_IN_FLIGHT = 32
_PACKET = 1 << 16
LONGEST_REASON = 4 << 10
_PR_SET_CHILD_SUBREAPER = 36


class Request:
    """A proc that is requested from a preloaded interpreter, with all that the ordinary way needs."""

    def __init__(self, uid: int, plan: tuple[Any, ...], fds: list[int]) -> None:
        self.uid, self.plan, self.fds = uid, plan, fds
        self.gate = -1
        self.asked_at = 0.0
        # An interpreter has been made anew for it, because code had changed.
        self.is_renewed = False

    def ordinary(self, reason: str) -> Start:
        *command, setup, preload = self.plan
        if reason:
            setup = marshal.dumps((*marshal.loads(setup), reason))
        if preload["fork"]:
            return Start(False, self.uid, setup, self.fds)
        return Start(True, self.uid, marshal.dumps((*command, setup)), self.fds)

    def close(self) -> None:
        for fd in (*self.fds, self.gate):
            if fd >= 0:
                os.close(fd)


class Preloader:
    """A preloaded interpreter, from its start to its end."""

    def __init__(self, sock: Any, pid: int, job: int, modules: list[str], limit: float) -> None:
        self.sock, self.pid, self.job, self.modules = sock, pid, job, modules
        self.is_ready = False
        self.until = time.monotonic() + limit
        self.limit = limit
        # The present step before it is ready.
        self.step = "the start of the interpreter"
        # The reason why it starts no proc; it is reported with one proc.
        self.refusal: str | None = None
        self.is_reported = False
        self.waiting: list[Request] = []
        self.asked: dict[int, Request] = {}


class Preloaders:
    """All preloaded interpreters of a host. `ordinary` has the starts that the zygote makes itself."""

    def __init__(
        self,
        execute: Callable[[tuple[Any, ...], int, dict[str, Any]], None],
        report: Callable[[int, bytes], None],
        reset_signals: Callable[[], None],
    ) -> None:
        import ctypes

        self._execute = execute
        self._report = report
        self._reset_signals = reset_signals
        self.by_key: dict[bytes, Preloader] = {}
        # The running ones, by pid. A replaced interpreter stays here until it is reaped.
        self.by_pid: dict[int, Preloader] = {}
        self.ordinary: list[Start] = []
        # Procs forked by them become children of this process.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def request(self, uid: int, plan: tuple[Any, ...], fds: list[int]) -> None:
        """Starts a proc of a plan with modules."""
        self._request(Request(uid, plan, fds))

    def _request(self, request: Request) -> None:
        *command, setup, preload = request.plan
        job = marshal.loads(setup)[4]
        key = marshal.dumps((command, preload, job))
        one = self.by_key.get(key)
        if one is None:
            try:
                one = self.by_key[key] = self._start(command, setup, preload, job)
            except OSError as e:
                self.ordinary.append(request.ordinary(f"the interpreter cannot be started: {e.strerror}"))
                return
        if one.refusal is not None:
            self._ordinary(one, request)
        else:
            one.waiting.append(request)
            self._ask_waiting(one)

    def _start(self, command: list[Any], setup: bytes, preload: dict[str, Any], job: int) -> Preloader:
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                ours.close()
                self._reset_signals()
                os.setpgid(0, 0)
                if set_parent_death_signal(parent):
                    self._execute((*command, setup), theirs.fileno(), {**preload, "job": job})
            finally:
                os._exit(1)
        theirs.close()
        limit = preload["limit"] / 2 if preload["limit"] else _IMPORT_TIMEOUT
        one = self.by_pid[pid] = Preloader(ours, pid, job, preload["modules"], limit)
        ours.setblocking(False)
        self._describe(one, "importing")
        return one

    def _describe(self, one: Preloader, state: str) -> None:
        """Reports the state to the agent; an empty one for an interpreter that has ended."""
        quoted = ", ".join(f'"{name}"' for name in one.modules)
        text = f'{{"state": "{state}", "modules": [{quoted}]}}' if state else ""
        self._report(one.job, one.pid.to_bytes(4, "little") + text.encode())

    def descriptors(self) -> dict[int, Preloader]:
        return {one.sock.fileno(): one for one in self.by_pid.values() if one.sock.fileno() >= 0}

    def timeout(self) -> int | None:
        """Milliseconds until the first time limit."""
        ends = [one.until for one in self.by_pid.values() if not one.is_ready and one.refusal is None]
        ends += [r.asked_at + _ANSWER_TIMEOUT for one in self.by_pid.values() for r in one.asked.values()]
        return None if not ends else max(0, int((min(ends) - time.monotonic()) * 1000) + 1)

    def check_times(self) -> None:
        now = time.monotonic()
        for one in list(self.by_pid.values()):
            if not one.is_ready and one.refusal is None and one.until <= now:
                self._refuse(one, f"{one.step} has not ended after {one.limit:g} s")
            elif any(r.asked_at + _ANSWER_TIMEOUT <= now for r in one.asked.values()):
                # The next request gets another one.
                self._drop(one, f"the interpreter with {', '.join(one.modules)} has not answered for {_ANSWER_TIMEOUT:g} s")

    def receive(self, one: Preloader) -> list[tuple[int, int]]:
        """Handles the messages of one; gives uid and pid of the procs that have begun."""
        begun: list[tuple[int, int]] = []
        while one.sock.fileno() >= 0:
            try:
                packet = one.sock.recv(_PACKET)
            except BlockingIOError:
                break
            except OSError:
                packet = b""
            if not packet:
                self._drop(one, self._end_of(one))
                break
            kind, body = packet[0], packet[1:]
            if kind == READY:
                one.is_ready = True
                self._describe(one, "ready")
            elif kind == REFUSED:
                self._refuse(one, body.decode(errors="replace"))
            elif kind == IMPORTS:
                one.step = f"the import of {body.decode()}" if body else "a trial fork"
            else:
                request = one.asked.pop(int.from_bytes(body[:8], "little"), None)
                if request is not None:
                    self._answered(one, kind, request, body[8:], begun)
            self._ask_waiting(one)
        return begun

    def _answered(self, one: Preloader, kind: int, request: Request, body: bytes, begun: list[tuple[int, int]]) -> None:
        if kind == STARTED:
            begun.append((request.uid, int.from_bytes(body, "little")))
            try:
                os.write(request.gate, b"!")
            except BrokenPipeError:  # the proc was killed, which its parent notices
                pass
            request.close()
        elif kind == FAILED:
            self._ordinary(one, request)
        elif request.is_renewed:
            one.waiting.append(request)
            self._drop(one, f"{body.decode(errors='replace')} changes again and again")
        else:
            # The code of its modules has changed: another one serves all its requests.
            stale, one.asked, one.waiting = [request, *one.asked.values(), *one.waiting], {}, []
            self._replace(one)
            for each in stale:
                each.is_renewed = True
                if each.gate >= 0:
                    os.close(each.gate)
                    each.gate = -1
                self._request(each)

    def _ask_waiting(self, one: Preloader) -> None:
        while one.waiting and one.is_ready and one.refusal is None and len(one.asked) < _IN_FLIGHT:
            self._ask(one, one.waiting.pop(0))

    def _ask(self, one: Preloader, request: Request) -> None:
        memory = read = -1
        try:
            memory = os.memfd_create("monarch-setup")
            read, request.gate = os.pipe2(os.O_CLOEXEC)
            _write(memory, request.plan[-2])
            # An interpreter that was stopped starts the proc too.
            os.kill(one.pid, signal.SIGCONT)
            fds = _fds([*request.fds, memory, read])
            one.sock.sendmsg([request.uid.to_bytes(8, "little")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, fds)])
            request.asked_at = time.monotonic()
            one.asked[request.uid] = request
        except OSError:
            self._ordinary(one, request)
        finally:
            for fd in (memory, read):
                if fd >= 0:
                    os.close(fd)

    def _ordinary(self, one: Preloader, request: Request) -> None:
        if request.gate >= 0:
            os.close(request.gate)
        reason = "" if one.is_reported or one.refusal is None else f"{', '.join(one.modules)}: {one.refusal}"
        one.is_reported |= bool(reason)
        self.ordinary.append(request.ordinary(reason))

    def _refuse(self, one: Preloader, reason: str) -> None:
        """All procs start the ordinary way from now on; the modules are not imported again for this key."""
        one.refusal = reason
        self._describe(one, "refused")
        self._end(one)
        for request in (*one.waiting, *one.asked.values()):
            self._ordinary(one, request)
        one.waiting, one.asked = [], {}

    def _drop(self, one: Preloader, reason: str) -> None:
        """Handles the end of an interpreter. After a ready one the next request makes another."""
        if one.refusal is not None:
            return self._end(one)
        if not one.is_ready:
            return self._refuse(one, reason)
        self._refuse(one, reason)
        self._forget(one)

    def _replace(self, one: Preloader) -> None:
        self._forget(one)
        self._end(one)

    def _forget(self, one: Preloader) -> None:
        for key in [key for key, found in self.by_key.items() if found is one]:
            del self.by_key[key]

    def _end(self, one: Preloader) -> None:
        if one.sock.fileno() >= 0:
            one.sock.close()
        self._kill(one)

    def _kill(self, one: Preloader) -> None:
        """Kills the interpreter with the processes of its group: those that a module has started, and procs that have not begun."""
        for kill in (os.killpg, os.kill):
            try:
                kill(one.pid, signal.SIGKILL)
            except ProcessLookupError:  # it has no group yet
                continue

    def _end_of(self, one: Preloader) -> str:
        if one.is_ready:
            return "the interpreter has ended"
        # A module may have closed the socket and go on. The kill does not change the status of a process that ends already.
        self._kill(one)
        try:
            found = os.waitid(os.P_PID, one.pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            found = None
        how = ""
        if found is not None:
            how = f" with exit code {found.si_status}" if found.si_code == os.CLD_EXITED else f" by signal {found.si_status}"
        return f"{one.step} has ended the interpreter{how}"

    def ended(self, pid: int) -> None:
        """Handles the end of a child that is a preloaded interpreter, before it is reaped: until then its number identifies it."""
        one = self.by_pid.get(pid)
        if one is None:
            return
        if one.refusal is None:
            self._drop(one, self._end_of(one))
        self._end(one)
        del self.by_pid[pid]
        self._describe(one, "")

    def killed(self, uid: int) -> bool:
        """Forgets a request whose proc is to be killed before it has begun."""
        for one in self.by_pid.values():
            request = one.asked.pop(uid, None)
            if request is None:
                request = next((r for r in one.waiting if r.uid == uid), None)
                if request is None:
                    continue
                one.waiting.remove(request)
            request.close()
            return True
        return False

    def close(self) -> None:
        """In a forked child: closes all descriptors, so that the ends of other processes are noticed."""
        for one in self.by_pid.values():
            one.sock.close()
            for request in (*one.waiting, *one.asked.values()):
                request.close()
        for start in self.ordinary:
            for fd in start.fds:
                os.close(fd)

    def job_ended(self, job: int) -> None:
        for one in [one for one in self.by_pid.values() if one.job == job]:
            self._replace(one)
            for request in (*one.waiting, *one.asked.values()):
                request.close()
            one.waiting, one.asked = [], {}
        for key in [key for key, one in self.by_key.items() if one.job == job]:
            del self.by_key[key]


def _fds(numbers: list[int]) -> Any:
    import array

    return array.array("i", numbers)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
