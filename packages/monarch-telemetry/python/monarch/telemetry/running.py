"""Telemetry of this process's job: started, asked, stopped."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from monarch.extension.events import emit
from monarch.telemetry.errors import TelemetryError

if TYPE_CHECKING:
    from monarch.actor import ActorMesh, Future, HostMesh, ProcMesh
    from monarch.job import JobControl
    from monarch.telemetry._collector.options import Options
    from monarch.telemetry._diagnose.diagnosis import Diagnosis
    from monarch.telemetry._engine.engine import Engine
    from monarch.telemetry._engine.query_engine import QueryEngine
    from monarch.telemetry._serving.uses import Use, Uses
    from monarch.telemetry._stacks.merged import StackReport

_uses: Uses | None = None
_making = threading.Lock()
# Options of which the running telemetry may have more than a start requests.
_WIDENED = ("retention_secs", "snapshot_interval_secs", "level", "budget_bytes", "metric_interval_secs", "memory_interval_secs")
_CONTROL = ("title", "apply_id", "heal", "kill")


class Telemetry:
    """Telemetry that runs. `engine` answers SQL.

    `url` is the base URL of the HTTP API, None where nothing is served; `dashboard_url` that of the dashboard, with the token behind `#`.
    `token` is empty where nothing is served. An engine or server that several handles share ends with the last of them.
    """

    __module__ = "monarch.telemetry"

    def __init__(self, use: Use) -> None:
        served = next(iter(use.servers), None)
        self.asking = use.asking
        self._pid = os.getpid()
        self.engine: QueryEngine = use.engine
        self._use = use
        self.url: str | None = None if served is None else served.url
        self.dashboard_url: str | None = None if served is None else served.dashboard_url
        self.token: str = "" if served is None else served.token

    def stop_serving(self) -> None:
        """Ends the HTTP API, where there is one that no other handle has, within a second; the engine goes on."""
        self.url, self.dashboard_url, self.token = None, None, ""
        if os.getpid() == self._pid:
            with all_uses().changing:
                all_uses().stop_serving(self._use)

    def stop(self) -> Future[None]:
        """The collectors observe no more, and keep what they have until the job ends. Done when they have stopped.

        Collectors of another telemetry of this process continue.
        """
        from monarch.extension import Promise, promise

        all_uses().remove(self._use)
        stopped: Promise[None] = promise("the stop of telemetry")

        def stop() -> None:
            try:
                self.stop_serving()
                with all_uses().changing:
                    all_uses().rest(self.asking)
            except BaseException as error:  # the waiter has to get the error
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
    """Records the events of all processes of the job, from now on, and answers queries about them.

    Telemetry that runs already on all of these hosts goes on, with the union of both sets of options; it ends when every start was stopped.
    `query` asks the newest telemetry that was not stopped.

    Args:
        config: a `monarch.job.TelemetryConfig`, or an object with some of its attributes.
        hosts: a mesh, or meshes by name; by default the host of this process.
        serve: offers the HTTP API to `monarch query` and other programs of this user; needs the extra `http`.
        admin_addr: the address of the API, by default the setting `mesh_admin_addr`.
        job: the apply_id of a job.
        control: the job that the actions `heal_job` and `kill_job` use.
        **changes: attributes of `config` by name: `level`, `retention_secs` and `snapshot_interval_secs` in seconds, `budget_bytes` of each
            host, `include_dashboard`.

    Returns:
        The running telemetry, with `stop()`.

    Raises:
        TypeError: an argument has another type.
        TelemetryError: an option or the address is wrong, or no host can collect.

    ```python
    import monarch.telemetry as telemetry
    from monarch.actor import this_host

    running = telemetry.start(retention_secs=60)
    with this_host().spawn_procs({"gpus": 2}, name="trainers") as procs:
        procs.initialized.get()
        assert telemetry.query("SELECT count(*) AS n FROM procs").to_pylist()[0]["n"] >= 2
    running.stop().get()
    ```
    """
    if config is not None and not _option_names(config):
        raise TypeError(f"start(config={config!r}): expected a TelemetryConfig, not {type(config).__name__}")
    _check(serve, admin_addr, job, control)
    options = checked_options(config, changes).with_client(os.environ, job)
    meshes = _meshes(hosts)
    from monarch.actor import this_host
    from monarch.extension import member

    try:
        from monarch.telemetry._engine.engine import Engine
        from monarch.telemetry._engine.query_engine import QueryEngine
        from monarch.telemetry._serving.uses import Use
    except KeyboardInterrupt:
        from monarch.telemetry._few_threads import can_start, hint

        # OpenBLAS, which Arrow loads with NumPy, interrupts the program if it cannot start a thread.
        if can_start():
            raise
        raise TelemetryError("telemetry cannot start: no thread can be started for a library that it loads", hint=hint()) from None
    member()  # `RuntimeError` in a fork, which has no thread that would answer
    wanted = frozenset([this_host(), *_each_host(meshes.values())])
    with all_uses().changing:
        # A job names its hosts, and its answers contain no others.
        running = all_uses().covering(wanted, exactly=job is not None)
        if running is None:
            asking = Engine(meshes, options)
            try:
                asking.start()
            except BaseException:
                all_uses().rest(asking)
                raise
        else:
            asking = running.asking
            wider = asking.options.widened(options)
            if text := _difference(options, wider, {*changes, *_option_names(config)}):
                warnings.warn(f"telemetry that runs already goes on with {text}", UserWarning, stacklevel=2)
            if wider != asking.options:
                _widen(asking, wider)
        served = None
        if serve or options.include_dashboard:
            from monarch.telemetry._serving import serving

            port = options.dashboard_port if options.include_dashboard else None
            try:
                served = serving.start(asking, admin_addr, job=job, control=control, dashboard_port=port)
            except BaseException:
                # Collectors without telemetry of this process would observe forever.
                all_uses().rest(asking)
                raise
        use = Use(asking, QueryEngine(asking) if running is None else running.engine, [] if served is None else [served])
        use.hosts = wanted if running is None else running.hosts
        found = Telemetry(use)
        all_uses().add(use, found)
    return found


def checked_options(config: object, changes: Mapping[str, Any]) -> Options:
    """`Options.of`, which takes None as what was left out. `TelemetryError` names what is wrong."""
    from monarch.telemetry._collector.options import Options

    options = Options.of(config, **{name: _Nothing() if value is None else value for name, value in changes.items()})
    if not isinstance(options.include_dashboard, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TelemetryError(f"include_dashboard={options.include_dashboard!r}: expected True or False")
    return options


class _Nothing:
    """None that was given, which no option may be."""

    def __repr__(self) -> str:
        return "None"


def _check(serve: object, admin_addr: object, job: object, control: object) -> None:
    if not isinstance(serve, bool):
        raise TypeError(f"start(serve={serve!r}): expected True or False, not {type(serve).__name__}")
    if admin_addr is not None and not isinstance(admin_addr, str):
        raise TypeError(f"start(admin_addr={admin_addr!r}): expected an address such as '127.0.0.1:1729', not {type(admin_addr).__name__}")
    if job is not None and not isinstance(job, str):
        raise TypeError(f"start(job={job!r}): expected the apply_id of a job, a str, not {type(job).__name__}")
    if job is not None and (not job or "/" in job or job.startswith(".")):
        # The value is used as the name of a folder.
        raise TelemetryError(f"job={job!r}: expected the apply_id of a job")
    if control is not None and not all(hasattr(control, name) for name in _CONTROL):
        raise TypeError(f"start(control={control!r}): expected a monarch.job.JobControl, not {type(control).__name__}")


def _meshes(hosts: object) -> Mapping[str, HostMesh]:
    from monarch.actor import HostMesh, this_host

    if hosts is None:
        hosts = this_host()
    of = type(hosts).__name__
    by_name = cast("Mapping[object, object]", hosts) if isinstance(hosts, Mapping) else {"hosts": hosts}
    if not all(isinstance(name, str) and isinstance(one, HostMesh) for name, one in by_name.items()):
        raise TypeError(f"start(hosts={cast('object', hosts)!r}): expected a mesh of hosts, or such meshes by name, not {of}")
    if not by_name:
        raise TelemetryError("hosts={}: expected at least one mesh of hosts; left out, it is the host of this process")
    return cast("Mapping[str, HostMesh]", by_name)


def _each_host(meshes: Iterable[HostMesh]) -> Iterable[HostMesh]:
    """Each host as a mesh of its own: those of one host are equal."""
    from itertools import product

    for mesh in meshes:
        labels = mesh.extent.labels
        for point in product(*(range(size) for size in mesh.extent.sizes)):
            yield mesh.slice(**dict(zip(labels, point, strict=True))) if labels else mesh


def _option_names(config: object) -> set[str]:
    from monarch.telemetry._collector.options import Options

    return {name for name in Options._fields if config is not None and hasattr(config, name)}


def _difference(asked: Options, running: Options, given: set[str]) -> str:
    """The options that were given and do not hold, as what runs has more."""
    differing = [name for name in _WIDENED if name in given and getattr(asked, name) != getattr(running, name)]
    return "; ".join(f"{name}={getattr(running, name)!r}, not {getattr(asked, name)!r}" for name in differing)


def _widen(asking: Engine, options: Options) -> None:
    """Gives the collectors of an engine more options. A collector that does not answer gets them when it answers, or is started again."""
    from contextlib import suppress

    from monarch.actor import MonarchError
    from monarch.telemetry._engine.questions import RESTART

    asking.options = options
    quiet = [host.proc for host in asking.hosts if host.proc]
    waiting: list[Any] = []
    for host in asking.hosts:
        host.options = options
        with suppress(MonarchError, TimeoutError):
            waiting.append(host.start(RESTART).configure.call_one(tuple(options), quiet, 0.0))
    for future in waiting:
        with suppress(MonarchError, TimeoutError):
            future.get(timeout=RESTART)


def all_uses() -> Uses:
    """The telemetry of this process that was not stopped."""
    global _uses
    if _uses is None:
        from monarch.telemetry._serving.uses import Uses

        with _making:
            _uses = _uses or Uses()
    return _uses


def current() -> Telemetry:
    """The newest telemetry that runs in this process. `TelemetryError` where none does, `RuntimeError` in a fork."""
    use = _newest()
    found = cast("Telemetry | None", use.handle())
    if found is None:
        found = Telemetry(use)
    return found


def _newest() -> Use:
    found = None if _uses is None else _uses.newest
    if found is not None:
        # A fork has no thread that would answer.
        from monarch.extension import member

        member()
    if found is None:
        raise TelemetryError(
            "telemetry is not enabled in this process",
            hint="call job.enable_telemetry() before job.state(), or monarch.telemetry.start(hosts=...)",
        )
    return found


def query(sql: str, *, timeout: float | None = None) -> Any:
    """Answers a statement of SQL by the newest telemetry that runs in this process. The tables are in docs/sql.md.

    Args:
        sql: one SELECT.
        timeout: seconds, 10 by default and 600 at most; hosts have four fifths of it.

    Returns:
        A `pyarrow.Table`; `table.schema.metadata[b"coverage"]` states as JSON which hosts have answered.

    Raises:
        TelemetryError: no telemetry runs.
        QueryError: the statement names an unknown table or column, or is malformed.
        QueryRejected: the statement does more than read.
        QueryTimeout: no host has answered in time, or the answer takes too long.
        QueryLimit: the answer has more than 100,000 rows or 64 MiB, or needs too much memory.

    ```python
    import monarch.telemetry as telemetry

    running = telemetry.start()
    hosts = telemetry.query("SELECT * FROM hosts")
    assert hosts.num_rows == 1
    running.stop().get()
    ```
    """
    return _newest().engine.query(sql, timeout=timeout)


def diagnose() -> Diagnosis:
    """Finds what is wrong with the job of this process now: the causes, most likely first, each with the facts that show it.

    Looks twice at the processes, within about a second. It needs no running telemetry; with it the failures of the past count too.

    Returns:
        The causes and what was looked at; `str()` of it is for a person, `to_json()` for a program. Without causes, nothing is wrong.

    Raises:
        TelemetryError: the processes cannot be looked at, and no telemetry runs.

    ```python
    import monarch.telemetry as telemetry
    from monarch.actor import this_host

    with this_host().spawn_procs({"gpus": 2}, name="trainers") as procs:
        procs.initialized.get()
        found = telemetry.diagnose()
        assert not found.causes, found
    ```
    """
    from monarch.telemetry._diagnose.collect import collected, own_job
    from monarch.telemetry._diagnose.diagnosis import diagnosed

    return diagnosed(collected(own_job, None if _uses is None or _uses.newest is None else _newest().asking))


def record(name: str, **fields: float | str | bool) -> None:
    """Adds a row to the table `events`. Takes about a microsecond; without telemetry the call does nothing.

    Args:
        name: the name of the event.
        **fields: the columns of the event, kept as JSON.

    ```python
    import monarch.telemetry as telemetry

    running = telemetry.start()
    telemetry.record("epoch", number=3, loss=0.5)
    assert telemetry.query("SELECT name FROM events WHERE name = 'epoch'").num_rows == 1
    running.stop().get()
    ```
    """
    emit(name, **fields)


def stacks(mesh: HostMesh | ProcMesh | ActorMesh | None = None, *, native: bool = False, locals: bool = False) -> StackReport:
    """The stacks of the procs of a mesh, or of all processes of the job, equal ones merged; `str()` of the report is for a person.

    A process answers by itself. If it does not, or its GIL is held, py-spy reads it from outside, if that is installed. `native`
    adds frames of compiled code and `locals` the local variables; both need py-spy, and pause each process for some milliseconds.
    `TelemetryError` where no telemetry runs.
    """
    from monarch.actor import ActorMesh, HostMesh, ProcMesh

    if mesh is not None and not isinstance(mesh, HostMesh | ProcMesh | ActorMesh):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"stacks({mesh!r}): expected a mesh of hosts, procs or actors, not {type(mesh).__name__}")
    asking = _newest().asking
    if isinstance(mesh, ProcMesh | ActorMesh):
        from monarch.extension.mesh import mesh_view

        return asking.stacks([int(proc) for proc in mesh_view(mesh).procs], native=native, locals=locals)
    if mesh is not None:
        from monarch.telemetry._engine.engine import Engine

        asking = Engine({"hosts": mesh}, asking.options, alone=True)
    return asking.stacks(None, native=native, locals=locals)
