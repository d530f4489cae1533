"""The HTTP API and the dashboard of a job, in the process of its client."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monarch.extension import member, setting
from monarch.telemetry._dashboard.files import files
from monarch.telemetry._engine.engine import Engine
from monarch.telemetry._engine.running_queries import Row
from monarch.telemetry._export.prometheus import exposition
from monarch.telemetry._http.models import QueryRow
from monarch.telemetry._http.parts import Parts
from monarch.telemetry._http.serve import Serving, serve
from monarch.telemetry._http.sql_nodes import SqlNodes
from monarch.telemetry._serving.actions import JobActions
from monarch.telemetry._serving.procs import JobStacks, Procs
from monarch.telemetry._serving.settings import JobSettings
from monarch.telemetry.errors import TelemetryError

if TYPE_CHECKING:
    from monarch.job import JobControl


class Served:
    """What is served. `url` is the base URL of the API, `dashboard_url` has the token behind `#`, `token` is that of the scope admin."""

    def __init__(self, serving: Serving, folder: Path, has_dashboard: bool, own_folder: bool) -> None:
        self._serving, self._folder, self._own_folder = serving, folder, own_folder
        self.url = serving.urls[0]
        self.dashboard_url = serving.dashboard_url(len(serving.urls) - 1) if has_dashboard else None
        self.token = serving.tokens.admin
        if own_folder:
            atexit.register(self._remove)

    def stop(self) -> None:
        """Ends the server within a second."""
        self._serving.stop()
        if self._own_folder:
            atexit.unregister(self._remove)
            self._remove()

    def _remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def start(
    engine: Engine,
    address: str | None,
    *,
    job: str | None = None,
    control: JobControl | None = None,
    dashboard_port: int | None = None,
) -> Served:
    """Serves at an address, `host:port`, by default the setting `mesh_admin_addr`; the dashboard has a port of its own beside that.

    `job` is the apply_id of a job, in whose folder the tokens are, and `control` what heals and kills it. `TelemetryError` for an address
    that cannot be served, or a missing extra `http`.
    """
    from monarch.telemetry._http.server import Address, parse_address

    text = address or str(setting("mesh_admin_addr") or "127.0.0.1:1729")
    try:
        api = parse_address(text)
    except ValueError as error:
        raise TelemetryError(f"admin_addr: {error}") from None
    addresses = [api] if dashboard_port is None else [api, Address(api.host, dashboard_port)]
    _remove_left()
    folder = _folder(job)
    me = member()
    procs = Procs(engine)

    def metrics(accept: str) -> tuple[str, bytes]:
        return exposition(lambda sql: engine.ask(sql).table, accept)

    def audit(batch: Any) -> None:
        engine.own.append_batch("audit", batch)

    parts = Parts(
        engine,
        SqlNodes(engine, started_by=_user()),
        JobActions(engine, procs, control),
        JobStacks(engine, procs),
        JobSettings(procs),
        metrics=metrics,
        queries=lambda: [_listed(row) for row in engine.running.list()],
        audit=audit,
        files=files().get,
        proc_id=str(int(me.proc)),
        host=me.hostname,
    )
    serving = serve(parts, folder, addresses)
    return Served(serving, folder, dashboard_port is not None, job is None)


def _listed(row: Row) -> QueryRow:
    return {"query": str(row.number), "sql": row.sql, "started_us": int(row.began * 1e6), "elapsed_ms": round(row.elapsed * 1e3, 1)}


def _folder(job: str | None) -> Path:
    """Where the tokens of a job are: with its credentials, or below a name of this process."""
    home = Path(os.environ.get("MONARCH_HOME") or "~/.monarch").expanduser().absolute()
    return home / "jobs" / (job or f"client-{os.getpid()}")


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
