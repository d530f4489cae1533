"""The HTTP API and the dashboard of a job, in the process of its client. The collector of a host knows the settings of its procs."""

from __future__ import annotations

import atexit
import json
import logging
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monarch.extension import member, setting
from monarch.extension.masking import Masking
from monarch.telemetry._dashboard.files import NOT_BUILT, files
from monarch.telemetry._diagnose.collect import collected, own_job
from monarch.telemetry._diagnose.diagnosis import diagnosed
from monarch.telemetry._engine.engine import Engine
from monarch.telemetry._engine.running_queries import Row
from monarch.telemetry._export.prometheus import exposition
from monarch.telemetry._http.auth import tokens_in
from monarch.telemetry._http.models import ConfigEntry, QueryRow
from monarch.telemetry._http.parts import Parts
from monarch.telemetry._http.problems import Problem
from monarch.telemetry._http.serve import Serving, address_of, is_served, serve
from monarch.telemetry._http.sql_nodes import SqlNodes
from monarch.telemetry._serving.actions import JobActions
from monarch.telemetry._serving.procs import JobStacks, Procs

if TYPE_CHECKING:
    from monarch.job import JobControl
    from monarch.telemetry._http.server import Address

_log = logging.getLogger("monarch.telemetry")


class Served:
    """What is served. `url` is the base URL of the API, `dashboard_url` has the token behind `#`, `token` is that of the scope admin.

    Several handles of telemetry may use it: `start` gives a server that runs already, where it is what was asked for.
    """

    def __init__(
        self, asking: Engine, job: str | None, folder: Path, serving: Serving, address: Address, dashboard_port: int | None
    ) -> None:
        self._asking, self.job, self._folder = asking, job, folder
        self._serving, self._address = serving, address
        self._pid = os.getpid()
        self.url = serving.urls[0]
        self.dashboard_url: str | None = None
        self.token = serving.tokens.admin
        # The requested ports of dashboards, and their positions in the URLs.
        self._dashboards: dict[int, int] = {}
        if dashboard_port is not None:
            self._dashboards[dashboard_port] = len(serving.urls) - 1
            self.dashboard_url = serving.dashboard_url(len(serving.urls) - 1)
        atexit.register(self._leave)

    def is_for(self, asking: Engine, job: str | None, address: Address | None) -> bool:
        """Whether it is what a start would serve: the answers of this engine, for this job if one is named, at this address if one is."""
        if asking is not self._asking or (job is not None and job != self.job):
            return False
        return address is None or address == self._address or address == address_of(self.url.rpartition("/")[2])

    def add_dashboard(self, port: int) -> None:
        """Serves the dashboard at this port too; 0 is any, such as that where it is served already."""
        if port == 0 and self._dashboards:
            port = next(reversed(self._dashboards))
        if port not in self._dashboards:
            self._dashboards[port] = self._serving.add(self._address._replace(port=port))
        self.dashboard_url = self._serving.dashboard_url(self._dashboards[port])

    def stop(self) -> None:
        """Ends the server within a second. Nothing in a fork, whose parent serves."""
        if os.getpid() != self._pid:
            return
        self._serving.stop()
        if self in _running:
            _running.remove(self)
        atexit.unregister(self._leave)
        self._leave()

    def _leave(self) -> None:
        # A fork has the handlers of its parent, to which these tokens belong.
        if os.getpid() != self._pid:
            return
        # Another program may use the port from now on.
        self._serving.withdraw()
        if self.job is None and not is_served(self._folder):
            shutil.rmtree(self._folder, ignore_errors=True)


# The servers of this process, newest first. A start and a stop hold the lock `changing` of `Uses`.
_running: list[Served] = []


def start(
    engine: Engine,
    address: str | None,
    *,
    job: str | None = None,
    control: JobControl | None = None,
    dashboard_port: int | None = None,
) -> Served:
    """Serves at an address, `host:port`, by default the setting `mesh_admin_addr`; the dashboard has a port of its own beside that.

    A server at that address, or at any address if none is named, continues. `job` is the apply_id of a job, in whose folder the
    tokens are, and `control` what heals and kills it. `TelemetryError` for an address that cannot be served, or a missing extra `http`.
    """
    wanted = None if address is None else address_of(address)
    if dashboard_port is not None and not files().is_built:
        _log.warning("%s", NOT_BUILT)
    found = next((one for one in _running if one.is_for(engine, job, wanted)), None)
    if found is None:
        api = wanted or address_of(str(setting("mesh_admin_addr") or "127.0.0.1:1729"))
        found = _start(engine, api, job, control, dashboard_port)
        _running.insert(0, found)
    elif dashboard_port is not None:
        found.add_dashboard(dashboard_port)
    return found


def _start(engine: Engine, api: Address, job: str | None, control: JobControl | None, dashboard_port: int | None) -> Served:
    addresses = [api] if dashboard_port is None else [api, api._replace(port=dashboard_port)]
    _remove_left()
    folder = _folder(job)
    me = member()
    procs = Procs(engine)

    def metrics(accept: str) -> tuple[str, bytes]:
        return exposition(lambda sql: engine.ask(sql).table, accept)

    def audit(batch: Any) -> None:
        engine.own.append_batch("audit", batch)

    def diagnosis(seconds: float) -> dict[str, Any]:
        # Two looks and one statement have their own limits, which are shorter than the time of a request.
        return diagnosed(collected(own_job, engine)).to_json()

    parts = Parts(
        engine,
        SqlNodes(engine, started_by=_user()),
        JobActions(engine, procs, _home() / "dumps", Masking(tokens_in(folder)), control),
        JobStacks(engine, procs),
        JobSettings(procs),
        metrics=metrics,
        queries=lambda: [_listed(row) for row in engine.running.list()],
        audit=audit,
        files=files().get,
        diagnosis=diagnosis,
        proc_id=str(int(me.proc)),
        host=me.hostname,
    )
    serving = serve(parts, folder, addresses)
    return Served(engine, job, folder, serving, api, dashboard_port)


def _listed(row: Row) -> QueryRow:
    return {"query": str(row.number), "sql": row.sql, "started_us": int(row.began * 1e6), "elapsed_ms": round(row.elapsed * 1e3, 1)}


def _folder(job: str | None) -> Path:
    """Where the tokens of a job are: with its credentials, or below a name of this process."""
    return _home() / "jobs" / (job or f"client-{os.getpid()}")


def _home() -> Path:
    return Path(os.environ.get("MONARCH_HOME") or "~/.monarch").expanduser().absolute()


def _remove_left() -> None:
    """Removes the folders of programs that have ended without their `stop`."""
    for path in _folder("x").parent.glob("client-*"):
        pid = path.name.removeprefix("client-")
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(path, ignore_errors=True)


def _user() -> str:
    import getpass

    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a uid without a name
        name = str(os.getuid())
    return f"{name}: {' '.join(sys.argv[:1]) or 'python'}"


# The share of the time of a request for the proc: the collector answers before the request ends.
_SHARE = 0.8


class JobSettings:
    """See `monarch.telemetry._http.parts.Settings`."""

    def __init__(self, procs: Procs) -> None:
        self._procs = procs

    def config(self, proc_id: int, *, timeout: float) -> Sequence[ConfigEntry]:
        found = json.loads(self._procs.ask(proc_id, "settings", proc_id, timeout * _SHARE, timeout=timeout))
        if isinstance(found, str):
            raise Problem.unavailable(f"proc {proc_id} does not give its settings: {found}")
        return [
            {
                "name": name,
                "value": value,
                "default_value": default,
                "source": source,
                "changed_from_default": value != default,
                "env_var": variable,
            }
            for name, value, default, source, variable in found
        ]
