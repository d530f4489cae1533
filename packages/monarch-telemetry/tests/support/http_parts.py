"""Parts of an HTTP application over the made-up job, which record what they are asked to do."""

from __future__ import annotations

from functools import cache
from typing import Any

from support.made_up_job import END, rows

from monarch.telemetry._diagnose.diagnosis import diagnosed
from monarch.telemetry._diagnose.snapshot import Host, Proc, Snapshot
from monarch.telemetry._engine.one_host import OneHost
from monarch.telemetry._http.app import App
from monarch.telemetry._http.auth import Names, Tokens
from monarch.telemetry._http.parts import Parts
from monarch.telemetry._http.routes import ROUTES
from monarch.telemetry._http.sql_nodes import SqlNodes

TOKENS = Tokens("read-token-of-the-tests-000000", "admin-token-of-the-tests-11111")


class RecordedActions:
    """Actions that are always done; `calls` has their names and arguments."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        def action(*arguments: Any, **more: Any) -> dict[str, Any]:
            self.calls.append((name, arguments, more))
            return {"done": True, "detail": name}

        return action


class MadeUpStacks:
    """One thread in each proc."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def _answer(self, proc_id: int) -> Any:
        frame = {
            "name": "step",
            "filename": "train.py",
            "module": None,
            "short_filename": "train.py",
            "line": 10,
            "is_entry": False,
            "locals": None,
        }
        thread = {"pid": 1, "thread_id": 5, "thread_name": "main", "os_thread_id": 5, "active": True, "owns_gil": True, "frames": [frame]}
        return {"Ok": {"pid": proc_id, "binary": "py-spy", "stack_traces": [thread], "warnings": []}}

    def merged(self, mesh: str | None, *, native: bool, locals: bool, timeout: float) -> Any:
        return {"mesh": mesh, "native": native, "locals": locals, "entries": []}

    def read(self, proc_id: int, *, timeout: float) -> Any:
        return self._answer(proc_id)

    def store(self, proc_id: int, proc_ref: str, *, timeout: float) -> str:
        return f"dump-{proc_id}"

    def keep(self, dump_id: str, proc_ref: str, stacks: Any) -> None:
        self.kept.append((dump_id, proc_ref, stacks))

    def profile_svg(self, proc_id: int, **more: Any) -> bytes:
        return b"<svg/>"


class MadeUpSettings:
    """Two settings, one of them a secret."""

    def config(self, proc_id: int, *, timeout: float) -> Any:
        return [
            {"name": "queue_limit", "value": 5, "default_value": 10, "source": "environment", "changed_from_default": True},
            {"name": "hub_token", "value": "hunter2hunter2", "source": "environment", "changed_from_default": True},
        ]


DIAGNOSIS: dict[str, Any] = {
    **diagnosed(Snapshot((Proc("1", "host0", 7, "client"),), hosts=(Host("host0"),), sources=("1 proc",))).to_json(),
    "missing": [f"a server with {TOKENS.admin}"],
}


@cache
def engine() -> OneHost:
    return OneHost(rows())


def parts(**more: Any) -> Parts:
    """All parts; those in `more` are replaced."""
    given: dict[str, Any] = {
        "engine": engine(),
        "nodes": SqlNodes(engine(), clock=lambda: END / 1e6),
        "actions": RecordedActions(),
        "stacks": MadeUpStacks(),
        "settings": MadeUpSettings(),
        "metrics": lambda accept: ("text/plain; version=0.0.4", b"up 1\n"),
        "queries": lambda: [{"query": "7", "sql": "SELECT 1", "started_us": 5, "elapsed_ms": 0.5}],
        "diagnosis": lambda seconds: DIAGNOSIS,
        "ingest": lambda table, batches: None,
        "actor_id": "1",
        "proc_id": "2",
        "host": "host0",
    }
    return Parts(**{**given, **more})


# A busy machine is slow.
SECONDS = 25.0


def app(**more: Any) -> App:
    return App(parts(**more), TOKENS, Names(), routes=[route._replace(seconds=max(route.seconds, SECONDS)) for route in ROUTES])
