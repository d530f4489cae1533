"""Procs by their number, and their stacks: the collector of their host is asked."""

from __future__ import annotations

import json
import secrets
import time
from typing import Any, NamedTuple

from monarch.telemetry._engine.engine import Engine, Host
from monarch.telemetry._http.models import PyspyAnswer
from monarch.telemetry._http.problems import Problem
from monarch.telemetry._stacks.flame import flame
from monarch.telemetry._stacks.result import Ok, Result, parse_result
from monarch.telemetry._stacks.rows import dump_rows
from monarch.telemetry.errors import TelemetryError

# The most seconds of a collector in addition to the requested time.
_GRACE = 2.0


class Place(NamedTuple):
    """Where a proc runs."""

    host: Host
    pid: int


class Procs:
    """Finds procs by their number. Any thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def place(self, proc_id: int) -> Place:
        """`Problem` 404 for a proc that is not known, or that has ended."""
        found = self._engine.ask(f"SELECT pid, host_id, ended_us FROM procs WHERE proc_id = {int(proc_id)}").table.to_pylist()
        if not found:
            raise Problem.not_found(f"there is no proc {proc_id}")
        if found[0]["ended_us"] is not None:
            raise Problem.not_found(f"proc {proc_id} has ended")
        for host in self._engine.hosts:
            if host.host == found[0]["host_id"]:
                return Place(host, found[0]["pid"])
        raise Problem.not_found(f"the host of proc {proc_id} is not asked")

    def ask(self, proc_id: int, endpoint: str, *arguments: Any, timeout: float) -> Any:
        """The answer of the collector of its host to `endpoint(pid, ...)`. `TelemetryError` where it has none."""
        host, pid = self.place(proc_id)
        try:
            return getattr(host.start(timeout), endpoint).call_one(pid, *arguments).get(timeout=timeout)
        except TimeoutError:
            raise TelemetryError(f"the collector of {host.name} did not answer within {timeout:g} s") from None


class JobStacks:
    """See `monarch.telemetry._http.parts.Stacks`."""

    def __init__(self, engine: Engine, procs: Procs) -> None:
        self._engine, self._procs = engine, procs

    def merged(self, mesh: str | None, *, native: bool, locals: bool, timeout: float) -> dict[str, Any]:
        wanted = None
        if mesh is not None:
            statement = "SELECT p.proc_id FROM procs p JOIN meshes m ON p.mesh_id = m.id WHERE p.ended_us IS NULL AND m.given_name = "
            wanted = [row["proc_id"] for row in self._engine.ask(statement + "'" + mesh.replace("'", "''") + "'").table.to_pylist()]
            if not wanted:
                raise Problem.not_found(f"there is no mesh of procs {mesh!r} that runs")
        return dict(self._engine.stacks(wanted, native=native, locals=locals, timeout=timeout).to_json())

    def read(self, proc_id: int, *, timeout: float) -> PyspyAnswer:
        return self._read(proc_id, timeout).to_json()  # pyright: ignore[reportReturnType]

    def _read(self, proc_id: int, timeout: float) -> Result:
        text = self._procs.ask(proc_id, "read_stacks", max(1.0, timeout - _GRACE), timeout=timeout)
        return parse_result(text)

    def store(self, proc_id: int, proc_ref: str, *, timeout: float) -> str:
        found = self._read(proc_id, timeout)
        if not isinstance(found, Ok):
            raise Problem.unavailable(found.describe())
        dump_id = secrets.token_hex(8)
        self.keep(dump_id, proc_ref, found)
        return dump_id

    def keep(self, dump_id: str, proc_ref: str, stacks: Ok) -> None:
        for table, batch in dump_rows(stacks, dump_id, proc_ref, int(time.time() * 1e6)).items():
            self._engine.own.append_batch(table, batch)

    def profile_svg(
        self, proc_id: int, *, duration_s: float, rate_hz: int, native: bool, threads: bool, nonblocking: bool, timeout: float
    ) -> bytes:
        answer = json.loads(
            self._procs.ask(proc_id, "profile", duration_s, rate_hz, native, threads, nonblocking, timeout=duration_s + 2 * _GRACE + 10.0)
        )
        if "error" in answer:
            raise Problem.unavailable(answer["error"])
        stacks = [(tuple(frames), count) for frames, count in answer["stacks"]]
        return flame(stacks, title=f"proc {proc_id}, {duration_s:g} s at {rate_hz} Hz").encode()
