"""Telemetry of this process that was started and not stopped: the functions of the module ask the newest.

Several handles may ask one engine and have one server, which end with the last of them. A handle that was lost cannot be stopped. Where a
later one asks the same engine, as after a cell of a notebook was run again, that has what the lost one had. Where there was none when the
handle was lost, as after a `start()` whose result was not kept, its telemetry runs until the process ends.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from monarch.actor import ActorError, SupervisionError
from monarch.extension import ServiceError
from monarch.telemetry.errors import TelemetryError

if TYPE_CHECKING:
    from monarch.actor import HostMesh
    from monarch.telemetry._engine.engine import Engine
    from monarch.telemetry._engine.query_engine import QueryEngine
    from monarch.telemetry._serving.serving import Served

# The most seconds for the collectors of a telemetry that stops.
_REST = 10.0


class Use:
    """What one handle has: an engine, and servers. `hosts` are those that were asked for, each as a mesh of its own."""

    def __init__(self, asking: Engine, engine: QueryEngine, servers: Iterable[Served] = ()) -> None:
        self.asking, self.engine = asking, engine
        self.servers = list(servers)
        self.hosts: frozenset[HostMesh] = frozenset()
        self.handle: Callable[[], object | None] = lambda: self
        # Its handle was dropped before there was a later one.
        self.is_for_good = False


class Uses:
    """Any thread. `changing` is held by a start and a stop: what the one begins, the other does not end."""

    def __init__(self) -> None:
        self.changing = threading.Lock()
        self._lock = threading.Lock()
        self._uses: list[Use] = []

    @property
    def newest(self) -> Use | None:
        with self._lock:
            return self._uses[-1] if self._uses else None

    def covering(self, hosts: frozenset[HostMesh], *, exactly: bool) -> Use | None:
        """The newest that asks all these hosts, and with `exactly` no others."""
        with self._lock:
            return next((one for one in reversed(self._uses) if hosts == one.hosts or (not exactly and hosts < one.hosts)), None)

    def url_of(self, job: str) -> str | None:
        """Where a job of that apply_id is served."""
        with self._lock:
            return next((server.url for one in reversed(self._uses) for server in one.servers if server.job == job), None)

    def add(self, use: Use, handle: object) -> None:
        with self._lock:
            self._take_over()
            for one in self._uses:
                one.is_for_good = one.is_for_good or one.handle() is None
            use.handle = weakref.ref(handle)
            self._uses.append(use)

    def remove(self, use: Use) -> None:
        with self._lock:
            self._take_over()
            if use in self._uses:
                self._uses.remove(use)

    def stop_serving(self, use: Use) -> None:
        """Stops the servers of a use that no other one has."""
        with self._lock:
            self._take_over()
            servers, use.servers = use.servers, []
            others = [server for one in self._uses for server in one.servers]
        for server in servers:
            if server not in others:
                server.stop()

    def _take_over(self) -> None:
        """Uses without a handle go to the next one of the same engine."""
        for place, one in reversed(list(enumerate(self._uses))):
            if one.is_for_good or one.handle() is not None:
                continue
            later = next((other for other in self._uses[place + 1 :] if other.asking is one.asking), None)
            if later is not None:
                later.servers += [server for server in one.servers if server not in later.servers]
                del self._uses[place]

    def rest(self, asking: Engine) -> None:
        """Ends an engine that no use has any more. Collectors that another one asks go on; the others keep what they have."""
        with self._lock:
            others = [one.asking for one in self._uses]
        if asking in others:
            return
        asked = {host.host for other in others for host in other.hosts if host.proc}
        if not any(host.host in asked for host in asking.hosts):
            asking.rest(timeout=_REST)
            return
        asking.own.stop()
        resting: list[Any] = []
        for host in asking.hosts:
            host.rest()
            if host.proc and host.host not in asked:
                with suppress(ServiceError, SupervisionError, TelemetryError, TimeoutError):
                    resting.append(host.start(_REST).rest.call_one())
        for future in resting:
            with suppress(ActorError, SupervisionError, ServiceError, TimeoutError):
                future.get(timeout=_REST)
