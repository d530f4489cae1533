"""Requests to a keeper, and its end.

The main thread accepts connections and looks at the clock; each connection has a thread, whose request may take as long as its service
needs. The end closes the listener first, so that the next client starts another keeper, which waits for the lock of this one.

A request for hosts of which this process has lost some while their workers run is answered with their names: the client starts a keeper
that follows this one. Where no process gets an answer of these hosts, the client asks again for what can be done without them.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from monarch.extension.channel import Channel, ChannelEnded, ChannelError, listen
from monarch.job._client import keeper_channel
from monarch.job._client.keeper_channel import SILENT, plain
from monarch.job._keeper import bounded_log
from monarch.job._keeper.idle_time import IdleTime
from monarch.job._keeper.kept_job import LostHost
from monarch.job._keeper.kept_services import KeptServices

if TYPE_CHECKING:
    from monarch.actor import HostMesh

# Seconds for a client's request, which it sends at once.
_REQUEST_SECONDS = 10.0
_MOST_CONNECTIONS = 64
# Seconds between two checks of time, log and directory.
_TICK_S = 2.0
_STOP_SECONDS = 8.0
_TEXT = 8192
# The most lost hosts in an error.
_NAMED = 8
# Bytes of a path or a name; the line is bounded anyway.
_NAME = 8192


class KeeperServer:
    """Serves in the directory of descriptor `folder`, where `log` is; `hosts` gives the meshes of the job, `lost` what is lost of them."""

    def __init__(
        self,
        folder: int,
        log: str,
        hosts: Callable[[], Mapping[str, HostMesh]],
        services: KeptServices,
        *,
        lost: Callable[[], Sequence[LostHost]] = tuple,
        clock: Callable[[], float] = time.monotonic,
        idle: IdleTime | None = None,
        tick: float = _TICK_S,
    ) -> None:
        self._folder = folder
        self._log = log
        self._hosts = hosts
        self._services = services
        self._lost = lost
        self._clock = clock
        self._idle = idle or IdleTime(clock())
        self._tick = tick
        self._lock = threading.Lock()
        self._answered = threading.Condition(self._lock)
        self._connections: set[Channel] = set()
        self._why: str | None = None
        # Whether another keeper continues with the services.
        self._is_followed = False
        self._woken, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._listener = listen(folder, keeper_channel.SOCKET)

    def end(self, why: str) -> None:
        """Makes `run` return; called from any thread."""
        with self._lock:
            self._why = self._why or why
        try:
            os.write(self._wake, b"\0")
        except OSError:
            pass  # it is full, or closed: `run` is awake

    def run(self) -> str:
        """Serves until the end, whose reason it returns; services are stopped then, unless they are idle or another keeper follows."""
        poller = select.poll()
        poller.register(self._listener, select.POLLIN)
        poller.register(self._woken, select.POLLIN)
        while self._why is None:
            ready = [descriptor for descriptor, _ in poller.poll(self._tick * 1000)]
            if self._listener.fileno() in ready:
                self._accept()
            bounded_log.shorten(self._log)
            if os.fstat(self._folder).st_nlink == 0:
                self.end("its directory is gone")
            with self._lock:
                is_busy = bool(self._connections)
            if self._idle.is_over(self._clock(), busy=is_busy or self._services.is_busy()):
                self._close()
                return "idle"
        self._close()
        if self._is_followed:
            self._await_requests(_STOP_SECONDS)
            return self._why
        for line in self._services.stop_all(_STOP_SECONDS):
            print(f"could not stop {line}", flush=True)
        return self._why

    def _await_requests(self, seconds: float) -> None:
        """Returns when all requests are answered, or after `seconds`."""
        with self._answered:
            self._answered.wait_for(lambda: not self._connections, seconds)

    def _close(self) -> None:
        self._listener.close()
        try:
            os.unlink(keeper_channel.SOCKET, dir_fd=self._folder)
        except FileNotFoundError:
            pass

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # the client is gone already, or no descriptor is free
        with self._lock:
            is_full = len(self._connections) >= _MOST_CONNECTIONS
        if is_full:
            connection.close()
            return
        channel = Channel(connection, max_blob=0)
        with self._lock:
            self._connections.add(channel)
        threading.Thread(target=self._answer, args=(channel,), name="monarch-keeper-request", daemon=True).start()

    def _answer(self, channel: Channel) -> None:
        is_end = False
        try:
            channel.check_peer()
            channel.send({"keeper": os.getpid()})
            message = channel.take(_REQUEST_SECONDS).head
            is_end = message.get("do") == "end"
            channel.send(plain(self._done(message)))
        except ChannelEnded:
            pass  # the client only looks whether a keeper runs, or has left
        except (OSError, ValueError) as e:
            pid, uid = channel.peer()
            print(f"a client (pid {pid}, uid {uid}) is disconnected: {type(e).__name__}: {e}", flush=True)
        finally:
            with self._lock:
                self._connections.discard(channel)
                self._answered.notify_all()
            # The connection of the client that ends this process is closed with the process.
            if not is_end:
                channel.close()

    def _done(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            return self._do(message)
        except Exception as e:
            text = str(e)[:_TEXT]
            if message.get("do") == "serve" and self._uses_hosts(message):
                text += _lines(self._lost_hosts())
            return {"error": {"type": type(e).__name__, "text": text, "code": getattr(e, "code", None)}}

    def _uses_hosts(self, message: dict[str, Any]) -> bool:
        """A service that does not is also started while the keeper connects to the hosts, which may need that service."""
        return message.get("do") != "serve" or self._services.needs_hosts(str(message.get("service")))

    def _lost_hosts(self) -> Sequence[LostHost]:
        try:
            return self._lost()
        except Exception as e:  # a scheduler that does not answer: the request continues without its status
            print(f"the hosts cannot be looked at: {type(e).__name__}: {e}", flush=True)
            return ()

    def _do(self, message: dict[str, Any]) -> dict[str, Any]:
        what: object = message.get("do")
        if what == "status":
            return {"pid": os.getpid(), "services": self._services.status()}
        if what == "end":
            self.end("asked to")
            # No answer: the client waits for the end of the process.
            threading.Event().wait()
        if what == "leave":
            self._is_followed = True
            self.end("another keeper follows")
            return {}
        if what in ("serve", "renew") and not message.get("anyway") and self._uses_hosts(message):
            silent = [[host.mesh, host.rank] for host in self._lost_hosts() if not host.is_ended]
            if silent:
                return {SILENT: silent, "pid": os.getpid()}
        if what == "renew":
            self._services.renew(self._hosts)
            return {}
        service, key = message.get("service"), message.get("key")
        if not isinstance(service, str) or not isinstance(key, str) or not service or max(len(service), len(key)) > _NAME:
            raise ChannelError(f"a request '{what}' has a service and a key")
        if what == "stop":
            return {"stopped": self._stop(service, key, message.get("wait"))}
        if what != "serve":
            raise ChannelError(f"no request is called '{what}'")
        config: object = message.get("config")
        if not isinstance(config, dict):
            raise ChannelError("a config is an object")
        print(f"serve {service} {key}", flush=True)
        return dict(self._services.serve(service, key, cast("dict[str, Any]", config), self._hosts))

    def _stop(self, service: str, key: str, wait: object) -> bool:
        config = self._services.config(service, key)
        is_stopped = self._services.stop(service, key)
        if is_stopped and config is not None and isinstance(wait, int | float):
            self._services.check_end(service, key, config, self._hosts, float(wait))
        return is_stopped


def _lines(lost: Sequence[LostHost]) -> str:
    """The lines of an error about hosts that are lost: each with the reason, and how it comes back."""
    lines = [f"\n  host {host.mesh}[{host.rank}] ({host.name or 'unnamed'}) is lost: {host.why}" for host in lost[:_NAMED]]
    if len(lost) > _NAMED:
        lines.append(f"\n  ... and {len(lost) - _NAMED} more")
    if any(not host.is_ended for host in lost):
        lines.append("\nhint: a worker runs and does not answer: end it, then `monarch heal` (job.heal()) starts another")
    elif lost:
        lines.append("\nhint: `monarch heal` (job.heal()) starts it again")
    return "".join(lines)
