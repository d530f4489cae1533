"""A running mount server, as the daemon has it: started by this daemon or taken over from an earlier one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

from monarch.extension import python_command
from monarch.extension.channel import AsyncChannel, Channel, Message, connect
from monarch.fs._daemon.mount_record import SOCKET

_MAX_LOG_BYTES = 1 << 20
# Seconds between two checks for a killed server that cannot end: there is no event for it.
_LOOK_SECONDS = 0.25


class ServerLink:
    """One server process. `ended` is done when the process has ended, `ready` when the kernel has negotiated with it."""

    def __init__(self, folder: Path, on_fetch: Callable[[ServerLink, Message], None]) -> None:
        loop = asyncio.get_running_loop()
        self._on_fetch = on_fetch
        self.ready: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[str] = loop.create_future()
        # Descriptors of /dev/fuse and of the listening socket, from a server of an earlier daemon.
        self.descriptors: list[int] = []
        self.greeted: asyncio.Future[None] = loop.create_future()
        self.pid = 0
        # Whether SIGKILL ended the server.
        self.killed = False
        self._pidfd = -1
        self._closed = ""
        sock = connect(folder, SOCKET)
        self.channel = AsyncChannel(Channel(sock, takes_descriptors=True), self._message, self._channel_ended)

    @classmethod
    def start(
        cls, folder: Path, fuse: int, listener: socket.socket, *, resumed: bool, on_fetch: Callable[[ServerLink, Message], None]
    ) -> ServerLink:
        """Starts a server on these descriptors."""
        log = folder.parent.parent / "servers.log"
        with contextlib.suppress(OSError):
            if log.stat().st_size > _MAX_LOG_BYTES:
                os.truncate(log, 0)
        with open(log, "ab") as errors:
            numbers = (str(fuse), str(listener.fileno()))
            # The server has its own session: a signal to the group of the daemon does not end it.
            process = subprocess.Popen(
                python_command("monarch.fs._daemon.mount_server", str(folder), *numbers, "resume" if resumed else "first"),
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                cwd="/",
                pass_fds=(fuse, listener.fileno()),
                start_new_session=True,
            )
        try:
            link = cls(folder, on_fetch)
        except OSError:
            process.kill()
            process.wait()
            raise
        # The process is reaped through its pid.
        process.returncode = 0
        link._watch(process.pid)
        return link

    def _watch(self, pid: int) -> None:
        self.pid = pid
        try:
            self._pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            self._end("the mount server has ended")
            return
        asyncio.get_running_loop().add_reader(self._pidfd, self._exited)
        asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look)

    def _look(self) -> None:
        """A killed server ends only when all its threads do, and one that writes to the kernel may wait for a page that a reader keeps.

        The reader waits for an answer to a request that the killed server had taken. The next server answers it.
        """
        if self._pidfd < 0:
            return
        state = b"Z"
        with contextlib.suppress(OSError):
            state = Path(f"/proc/{self.pid}/stat").read_bytes().rpartition(b") ")[2][:1]
        if state in b"ZX":
            self._exited()
        else:
            asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look)

    def _exited(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        how = "ended"
        with contextlib.suppress(ChildProcessError):
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                code = os.waitstatus_to_exitcode(status)
                self.killed = code == -signal.SIGKILL
                how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
            else:
                self.killed, how = True, "was killed"
                self._reap()
        self._end(f"the mount server {self.pid} {how}")

    def _reap(self) -> None:
        """Reaps the process when its last thread has ended."""
        loop, pid = asyncio.get_running_loop(), self.pid
        pidfd = os.pidfd_open(pid)

        def ended() -> None:
            loop.remove_reader(pidfd)
            os.close(pidfd)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)

        loop.add_reader(pidfd, ended)

    def _end(self, reason: str) -> None:
        if not self.ended.done():
            self.ended.set_result(reason)
        self.channel.end(reason)

    def _channel_ended(self, reason: str) -> None:
        # A server with an unknown pid ended before it answered; another one is awaited through its pid.
        if self._pidfd < 0 and not self.ended.done():
            self.ended.set_result(reason)
        elif self._pidfd >= 0:
            self.kill()

    def _message(self, message: Message) -> None:
        op = message.head.get("op")
        if op == "hello":
            if self.pid == 0:
                self.descriptors = message.descriptors
                self._watch(int(message.head["pid"]))
            else:
                for fd in message.descriptors:
                    os.close(fd)
            if not self.greeted.done():
                self.greeted.set_result(None)
        if op == "ready" or (op == "hello" and message.head.get("ready")):
            if not self.ready.done():
                self.ready.set_result(None)
        elif op == "fetch":
            self._on_fetch(self, message)

    def kill(self) -> None:
        """Ends the process; `ended` follows."""
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)


def is_running(folder: Path) -> bool:
    """Whether a server of the mount of this folder is there, stopped or not; one that was killed and cannot end yet is none."""
    name = os.fsencode(folder)
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            argv = Path("/proc", pid, "cmdline").read_bytes().split(b"\0")
            if name in argv and b"monarch.fs._daemon.mount_server" in argv:
                return True
    return False
