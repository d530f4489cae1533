"""The agent of a host: it listens, admits clients, and runs their work, until one of them shuts the host down."""

from __future__ import annotations

import os

from monarch._core._native.protocol import FIRST_ERROR, OK
from monarch._core.call.future import Future, failed_future, new_future
from monarch._core.config.address import ChannelAddr, place_of
from monarch._core.hosts.attachment import agent_uid, where
from monarch._core.hosts.connections import native_hosts
from monarch._core.hosts.trust import Given
from monarch._core.process import log_directory, runtime_log
from monarch._core.process.current import begin_with, known_process
from monarch._core.process.identity import new_uid
from monarch._core.process.loaded import loaded_module
from monarch._core.process.process import LocalProcess
from monarch._core.sync import host_workspaces
from monarch._core.sync import path as workspace_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from threading import Event
    from typing import Any, NoReturn

    from monarch._core._native.system import HostAudit, HostShutdown

# Seconds for the last messages to other processes.
_GOODBYE = 2.0

# The log text for each outcome of a connection.
_TEXTS = {
    "joined": "{detail} has joined from {peer}",
    "refused": "refused {peer}: {detail}",
    "tunnel": "tunnel to {detail} for {peer}",
    "adopted": "connected to {peer}, which others had reached for this client",
    "lost": "host {peer} lost: {detail}",
    "left": "host {peer} left: {detail}",
    "unexpected": "event of host {peer} was ignored: {detail}",
    "ended": "job of {peer} is over: {detail}",
    "output": "{detail}; `await procs.logging_option(stream_to_client=True)` shows it here too, and `monarch logs` that of a job's workers",
    "release": "host {peer} has another patch release: {detail}",
}

_loop: WorkerLoop | None = None


class CannotListen(OSError, ValueError):
    """An address that is occupied, or does not belong to this machine: an error of the system, and of an argument."""

    def __str__(self) -> str:
        return str(self.strerror)


class WorkerLoop:
    """The worker of this process; at most one exists at a time."""

    def __init__(self, address: str, given: Given, tries: int = 1) -> None:
        global _loop
        if _loop is not None:
            raise RuntimeError(f"this process is a worker already, at {_loop.url}")
        given_address = ChannelAddr.parse(address)
        self.address = place_of(given_address)
        bound = self.address.bound or self.address
        trust = given.of(bound)
        workspaces = workspace_path.export()
        # An identity in the address has precedence: the variables may have been inherited.
        assigned, running = _assigned_uid(), known_process()
        uid = agent_uid(given_address) or assigned or (new_uid() if running is None else running.uid)
        log_directory.export(uid)
        self.process: LocalProcess = begin_with(uid)
        if not self.process.is_client:
            raise RuntimeError("a proc cannot be a worker: it has an agent already")
        self.process.execution.start_thread(workspaces.remove_left)
        _make_room(bound)
        self.port = self._listen(bound, trust, tries)
        self._socket = bound.path if bound.path and not bound.path.startswith("@") else None
        if self._socket is not None:
            os.chmod(self._socket, 0o600)
        if trust.kind == "insecure":
            runtime_log.event("host.insecure", runtime_log.WARN, address=self.url)
        self.cell = self.process.native.cell(FIRST_ERROR, 1)
        # Clients that wait for the end of the host.
        self._asked: list[tuple[int, int]] = []
        # Set when a client has come or gone; for `end_when_idle`.
        self._changed: Event | None = None
        _loop = self

    def _listen(self, bound: ChannelAddr, trust: Any, tries: int) -> int:
        hosts = native_hosts(self.process)
        kind, name, number = where(bound)
        for attempt in range(max(1, tries)):
            try:
                return hosts.listen((kind, name, number + attempt if kind == "tcp" and number else number), trust)
            except OSError as e:
                import errno

                if e.errno == errno.EADDRINUSE and attempt + 1 < tries and kind == "tcp" and number:
                    continue
                raise CannotListen(e.errno, f"listen: {bound.url}: {os.strerror(e.errno) if e.errno else e}") from None
        raise AssertionError("unreachable")

    @property
    def url(self) -> str:
        """The address that clients dial."""
        address = self.address
        if address.scheme in ("unix", "local"):
            return address.url
        host = os.uname().nodename if address.wildcard else address.host or os.uname().nodename
        port = address.get_port() if address.bound is not None and address.get_port() else self.port
        return f"tcp://{f'[{host}]' if ':' in host else host}:{port}"

    def is_at(self, address: ChannelAddr) -> bool:
        """Whether a client that dials this address reaches this worker."""
        uid = agent_uid(address)
        if uid and uid != self.process.uid:
            return False
        bound = self.address.bound or self.address
        (kind, name, number), (own_kind, own_name, _) = where(address), where(bound)
        if kind != "tcp" or own_kind == "unix":
            return (kind, name) == (own_kind, own_name)
        if number != self.port:
            return False
        found = _numbers(name)
        return any(map(_is_of_this_machine, found)) if own_kind == "fd" or bound.wildcard else bool(found & _numbers(own_name))

    @property
    def future(self) -> Future[None]:
        return new_future(self.cell, lambda c: None)

    def wait(self) -> None:
        """Waits until a client shuts the host down, or `end` is called."""
        try:
            self.future.get()
        finally:
            self.close()

    def end_when_idle(self, seconds: float) -> None:
        """Ends the worker, like a shutdown, once no client has been attached for `seconds`."""
        from threading import Event

        self._changed = Event()
        self.process.execution.start_thread(self._watch_idle, self._changed, seconds)

    def _watch_idle(self, changed: Event, seconds: float) -> None:
        from monarch._core._native import set_runtime_thread

        set_runtime_thread()
        hosts = native_hosts(self.process)
        while _loop is self:
            changed.clear()
            busy = hosts.clients() > 0
            if not changed.wait(None if busy else seconds) and hosts.clients() == 0:
                runtime_log.event("host.idle", detail=f"no client for {seconds:g} s")
                return self.end()

    def wake(self) -> None:
        """Wakes `end_when_idle`, because a client has come or gone."""
        if self._changed is not None:
            self._changed.set()

    def end(self, sender: int = 0, slot: int = 0) -> None:
        if slot:
            self._asked.append((sender, slot))
        self.cell.complete(0, 0, b"")

    def close(self) -> None:
        global _loop
        if _loop is not self:
            return
        _loop = None
        self.wake()
        native = self.process.native
        for sender, slot in self._asked:
            native.reply(sender, slot, 0, OK, b"")
        native_hosts(self.process).close(_GOODBYE)
        if self._socket is not None:
            try:
                os.unlink(self._socket)
            except OSError:  # another process has removed the file
                pass


# The identities of all workers that one launcher has started, and the rank of this one (jobs: `new_service_proc_id` and the like).
_IDS, _RANK = "MONARCH_SERVICE_PROC_IDS", "MONARCH_SERVICE_PROC_RANK"


def _assigned_uid() -> int:
    """The identity by which clients dial this worker, `<proc-id>@url`; 0 if the launcher gave none. The variables are removed, so that
    child processes do not inherit them.
    """
    text, rank = os.environ.get(_IDS), os.environ.get(_RANK)
    if not text or rank is None:
        return 0
    from monarch._core.process.identity import ProcId

    ids = text.split(",")
    if not (rank.isascii() and rank.isdecimal() and int(rank) < len(ids)):
        raise ValueError(f"{_RANK}={rank}, and {_IDS} has {len(ids)} identities")
    value = ProcId.from_string(ids[int(rank)]).uid.instance_value
    if not value or value >= 1 << 64:
        raise ValueError(f"{_IDS} has {ids[int(rank)]!r} for this worker, which is not the identity of a process: expected `label<uid>`")
    del os.environ[_IDS], os.environ[_RANK]
    return value


def _make_room(bound: ChannelAddr) -> None:
    """Removes a socket file whose listener is gone, because no other agent could bind it."""
    if bound.path is None or bound.path.startswith("@"):
        return
    import socket
    import stat

    try:
        # A connection to a file of any other kind is refused as well: only a socket may be removed.
        if not stat.S_ISSOCK(os.lstat(bound.path).st_mode):
            return
    except OSError:  # the file does not exist or cannot be reached: binding reports the problem
        return
    with socket.socket(socket.AF_UNIX) as s:
        try:
            s.connect(bound.path)
        except ConnectionRefusedError:
            os.unlink(bound.path)
        except OSError:  # the file belongs to another user: binding reports the problem
            return


def end() -> None:
    """Ends the worker of this process, if there is one, as if a client had shut it down."""
    if _loop is not None:
        _loop.end()


def is_at(text: str) -> bool:
    """Whether this process has a worker, and this address leads to it."""
    return _loop is not None and _loop.is_at(ChannelAddr.parse(text))


def _numbers(host: str) -> set[str]:
    import socket

    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(host, None)}
    except OSError:
        return set()


def _is_of_this_machine(number: str) -> bool:
    import socket

    with socket.socket(socket.AF_INET6 if ":" in number else socket.AF_INET) as s:
        try:
            s.bind((number, 0))
        except OSError:
            return False
    return True


def audit(event: HostAudit) -> None:
    """Writes the log entry of a join, a refusal or a loss. Runs on the housekeeping thread."""
    what = event.what
    level = runtime_log.WARN if what in ("refused", "lost", "release", "output") else runtime_log.INFO
    # The loss of a host is the reason of failures, which owners receive: the console does not show it again.
    text = _TEXTS[what].format(peer=event.peer or "a host", detail=event.detail)
    several = event.count > 1
    if several:
        text = f"{event.count} more refused; the last: {text}"
    runtime_log.event(f"host.{what}", level, what == "lost", peer=event.peer, count=event.count if several else None, detail=text)
    if what == "joined" and _loop is not None:
        _loop.wake()


def job_over(process: LocalProcess, host: int) -> None:
    """Handles the end of a client, with everything that it had here. `host` is the id of this host in its job."""
    process.execution.start_thread(host_workspaces.job_over, host)
    services = loaded_module("monarch._core.extension.host_services")
    if services is not None:
        services.job_over(host)
    if _loop is not None:
        _loop.wake()


def shut_down(process: LocalProcess, event: HostShutdown) -> None:
    """Ends the host at the request of a client."""
    if _loop is not None:
        _loop.end(event.sender, event.slot)
    else:
        process.native.reply(event.sender, event.slot, 0, OK, b"")


def start_worker_loop_forever(
    *,
    private_key: bytes | str | None = None,
    ca: bytes | str | None = None,
    address: str,
    secret: bytes | str | None = None,
    insecure: bool = False,
) -> Future[None]:
    """Starts the agent of this host at an address.

    Args:
        private_key: PEM, or its path: the key of the worker, with `ca`.
        ca: PEM, or its path: the authority of both sides' certificates.
        address: such as `tcp://0.0.0.0:22222`; with `label<uid>@` in front of it the agent has that identity.
        secret: bytes, or the path of a file that only its owner may read.
        insecure: True for no authentication.

    Returns:
        A Future that is done when a client has shut the host down.

    Raises:
        ValueError: the address needs credentials that are missing; from the Future, as an `OSError` too: the address cannot be used.

    ```python
    import subprocess
    import sys
    from pathlib import Path

    from monarch.actor import attach_to_workers

    address = f"ipc://{Path('worker.socket').resolve()}"
    code = "import sys; from monarch.actor import start_worker_loop_forever; start_worker_loop_forever(address=sys.argv[1]).get()"
    worker = subprocess.Popen([sys.executable, "-c", code, address])
    hosts = attach_to_workers(workers=[address])
    hosts.initialized.get()
    hosts.shutdown().get()
    assert worker.wait() == 0
    ```
    """
    try:
        loop = WorkerLoop(address, Given(secret, private_key, ca, insecure))
    except OSError as e:
        return failed_future(e)

    async def ended() -> None:
        try:
            await loop.future
        finally:
            loop.close()

    from monarch._core.call.lazy_future import returns_future

    return returns_future(ended)()


def run_worker_loop_until_shutdown(
    *,
    private_key: bytes | str | None = None,
    ca: bytes | str | None = None,
    address: str,
    secret: bytes | str | None = None,
    insecure: bool = False,
) -> None:
    """Runs the agent of this host at `address` until a client shuts it down; arguments as of `start_worker_loop_forever`.

    `ValueError`, which is an `OSError` too, if the agent cannot listen at the address.
    """
    WorkerLoop(address, Given(secret, private_key, ca, insecure)).wait()


def run_worker_loop_forever(
    *,
    private_key: bytes | str | None = None,
    ca: bytes | str | None = None,
    address: str,
    secret: bytes | str | None = None,
    insecure: bool = False,
) -> NoReturn:
    """Like `run_worker_loop_until_shutdown`; the process then ends with code 0."""
    import sys

    WorkerLoop(address, Given(secret, private_key, ca, insecure)).wait()
    sys.exit(0)
