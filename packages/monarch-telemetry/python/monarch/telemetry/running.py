"""Telemetry of this process's job: started, asked, stopped."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from monarch.extension.events import emit
from monarch.telemetry.errors import TelemetryError

if TYPE_CHECKING:
    from monarch.actor import ActorMesh, Future, HostMesh, ProcMesh
    from monarch.job import JobControl
    from monarch.telemetry._engine.engine import Engine
    from monarch.telemetry._engine.query_engine import QueryEngine
    from monarch.telemetry._serving.serving import Served
    from monarch.telemetry._stacks.merged import StackReport

_lock = threading.Lock()
_current: Telemetry | None = None


class Telemetry:
    """Telemetry that runs. `engine` answers SQL.

    `url` is the base URL of the HTTP API, None where nothing is served; `dashboard_url` that of the dashboard, with the token behind `#`.
    `token` is empty where nothing is served.
    """

    __module__ = "monarch.telemetry"

    def __init__(self, asking: Engine, served: Served | None = None) -> None:
        from monarch.telemetry._engine.query_engine import QueryEngine

        self.asking = asking
        self._served = served
        self.engine: QueryEngine = QueryEngine(asking)
        self.url: str | None = None if served is None else served.url
        self.dashboard_url: str | None = None if served is None else served.dashboard_url
        self.token: str = "" if served is None else served.token

    def stop_serving(self) -> None:
        """Ends the HTTP API, where there is one, within a second; the engine goes on."""
        served, self._served = self._served, None
        if served is not None:
            served.stop()

    def stop(self) -> Future[None]:
        """The collectors observe no more, and keep what they have until the job ends. Done when they have stopped."""
        from monarch.extension import Promise, promise

        global _current
        with _lock:
            if _current is self:
                _current = None
        stopped: Promise[None] = promise("the stop of telemetry")

        def stop() -> None:
            try:
                self.stop_serving()
                self.asking.rest(timeout=10.0)
            except BaseException as error:  # the waiter has to know
                stopped.set_exception(error)
            else:
                stopped.set_result(None)

        threading.Thread(target=stop, name="monarch-telemetry-stop", daemon=True).start()
        return stopped.future


def start(
    config: object = None,
    *,
    hosts: HostMesh | Mapping[str, HostMesh] | None = None,
    serve: bool = False,
    admin_addr: str | None = None,
    job: str | None = None,
    control: JobControl | None = None,
    **changes: Any,
) -> Telemetry:
    """Collects what the processes of the job do, from now on, on these hosts and that of this process.

    `config` is a `monarch.job.TelemetryConfig`, or anything with some of its attributes; `changes` are single ones by name: `level`,
    `retention_secs`, `snapshot_interval_secs`, `budget_bytes` of each host. Telemetry that runs already goes on, with what is more of both
    sets of options. `hosts` left out is the host of this process.

    `serve` offers the HTTP API at `admin_addr`, by default the setting `mesh_admin_addr`, for `monarch query` and other programs of this
    user; it needs the extra `http`. `include_dashboard` serves the dashboard too. `job` is the apply_id of a job, and `control`
    what its actions `heal_job` and `kill_job` ask. `TelemetryError` for a wrong option, and where no host can collect.
    """
    global _current
    from monarch.telemetry._collector.options import Options

    if config is not None and not any(hasattr(config, name) for name in Options._fields):
        raise TypeError(f"start(config={config!r}): expected a TelemetryConfig, not {type(config).__name__}")
    options = Options.of(config, **changes).with_client(os.environ, job)
    from monarch.actor import HostMesh, this_host
    from monarch.telemetry._engine.engine import Engine

    if hosts is None:
        hosts = this_host()
    named, kind = cast("object", hosts), type(cast("object", hosts)).__name__
    by_name = cast("Mapping[object, object]", named) if isinstance(named, Mapping) else {"hosts": named}
    if not all(isinstance(one, HostMesh) for one in by_name.values()):
        raise TypeError(f"start(hosts={named!r}): expected a mesh of hosts, or such meshes by name, not {kind}")
    meshes: Mapping[str, HostMesh] = {"hosts": hosts} if isinstance(hosts, HostMesh) else hosts
    asking = Engine(meshes, options)
    asking.start()
    served = None
    if serve or options.include_dashboard:
        from monarch.telemetry._serving import serving

        port = options.dashboard_port if options.include_dashboard else None
        try:
            served = serving.start(asking, admin_addr, job=job, control=control, dashboard_port=port)
        except BaseException:
            # Collectors that no telemetry of this process asks would observe for ever.
            if _current is None:
                asking.rest(timeout=10.0)
            raise
    found = Telemetry(asking, served)
    with _lock:
        _current = found
    return found


def current() -> Telemetry:
    """What runs in this process. `TelemetryError` where nothing does, `RuntimeError` in a fork."""
    found = _current
    if found is not None:
        # In a fork no thread is there that would answer.
        from monarch.extension import member

        member()
    if found is None:
        raise TelemetryError(
            "telemetry is not enabled in this process",
            hint="call job.enable_telemetry() before job.state(), or monarch.telemetry.start(hosts=...)",
        )
    return found


def query(sql: str, *, timeout: float | None = None) -> Any:
    """`QueryEngine.query` of the telemetry that runs in this process; `TelemetryError` where none does."""
    return current().engine.query(sql, timeout=timeout)


def record(name: str, **fields: float | str | bool) -> None:
    """A row of the table `events`, with these fields as JSON; nothing while no telemetry runs. About a microsecond."""
    emit(name, **fields)


def stacks(mesh: HostMesh | ProcMesh | ActorMesh | None = None, *, native: bool = False, locals: bool = False) -> StackReport:
    """The stacks of the procs of a mesh, or of all processes of the job, equal ones merged; `str()` of the report is for a person.

    A process answers by itself. One that does not, or whose GIL is held, is read from outside by py-spy, where that is installed. `native`
    adds frames of compiled code and `locals` the local variables; both need py-spy, and pause each process for some milliseconds.
    `TelemetryError` where no telemetry runs.
    """
    from monarch.actor import ActorMesh, HostMesh, ProcMesh

    if mesh is not None and not isinstance(mesh, HostMesh | ProcMesh | ActorMesh):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"stacks({mesh!r}): expected a mesh of hosts, procs or actors, not {type(mesh).__name__}")
    asking = current().asking
    if isinstance(mesh, ProcMesh | ActorMesh):
        from monarch.extension.mesh import mesh_view

        return asking.stacks([int(proc) for proc in mesh_view(mesh).procs], native=native, locals=locals)
    if mesh is not None:
        from monarch.telemetry._engine.engine import Engine

        asking = Engine({"hosts": mesh}, asking.options, alone=True)
    return asking.stacks(None, native=native, locals=locals)
