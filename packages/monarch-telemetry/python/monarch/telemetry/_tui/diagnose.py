"""Checks on a job through its API: each with its milliseconds, its role, and what was found. For the page and for `--diagnose`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple

from monarch.telemetry._http.http_client import HttpError
from monarch.telemetry._http.models import NodePayload
from monarch.telemetry._tui.api import NODE_SECONDS, QUERY_SECONDS, Api
from monarch.telemetry._tui.topology import Node, facts_of, has_ended, is_failed, kind_of
from monarch.telemetry.errors import TelemetryError

Status = Literal["ok", "warn", "fail"]
Group = Literal["admin", "mesh"]
# The most hosts; of each one proc is checked, of each such proc one actor: a job has thousands.
_MOST_HOSTS = 64
# The milliseconds above which an answer is slow.
_SLOW_MS = 1_000.0


class Check(NamedTuple):
    """One check. `role` is what its subject is for."""

    group: Group
    name: str
    role: str
    status: Status
    ms: float
    detail: str


class _Warning(Exception):
    """The subject answers, and is not as it should be."""


def checks(api: Api, *, clock: Callable[[], float] = time.monotonic) -> Iterator[Check]:
    """All checks, one after the other as they end. None raises."""
    made = _Checks(api, clock)
    first = made.run("admin", "GET /healthz", "the server answers", lambda: str(api.get("/healthz", NODE_SECONDS)["status"]))
    yield first
    if first.status == "fail":
        return
    yield made.run("admin", "GET /v1/admin", "the token is accepted", lambda: _served_by(api))
    yield made.run("admin", "GET /v1/openapi.json", "the schema of the API", lambda: _openapi(api))
    root: list[NodePayload] = []
    yield made.run("admin", "GET /v1/root", "the job and its hosts", lambda: _root(api, root))
    yield made.run(
        "admin", "GET /v1/tree", "the topology as text", lambda: f"{len(api.text('/v1/tree', QUERY_SECONDS).splitlines()):,} lines"
    )
    yield made.run("admin", "POST /v1/query", "SQL, and which hosts answer", lambda: _coverage(api))
    yield made.run("admin", "telemetry_status", "rows that were dropped or sampled", lambda: _dropped(api))
    yield made.run(
        "admin", "GET /metrics", "metrics for Prometheus", lambda: f"{len(api.text('/metrics', QUERY_SECONDS).splitlines()):,} lines"
    )
    for reference in (root[0]["children"] if root else [])[:_MOST_HOSTS]:
        yield from made.host(reference)


class _Checks:
    def __init__(self, api: Api, clock: Callable[[], float]) -> None:
        self._api, self._clock = api, clock

    def run(self, group: Group, name: str, role: str, check: Callable[[], str]) -> Check:
        before = self._clock()
        status: Status = "ok"
        try:
            detail = check()
        except _Warning as warning:
            status, detail = "warn", str(warning)
        except (TelemetryError, OSError) as error:
            # A feature that a process does not offer is not a failure.
            status, detail = "warn" if isinstance(error, HttpError) and error.status == 503 else "fail", str(error)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            status, detail = "fail", f"the answer has another form: {error!r}"
        ms = (self._clock() - before) * 1e3
        if status == "ok" and ms > _SLOW_MS:
            status, detail = "warn", f"slow: {detail}"
        return Check(group, name, role, status, round(ms, 1), detail)

    def host(self, reference: str) -> Iterator[Check]:
        """The host, the first of its procs that runs, and the first actor of that."""
        found = _Found()
        yield self.run("mesh", "host", "runs procs", lambda: found.of(self._node(reference), "Host"))._replace(name=found.name or reference)
        for child in _first(found.payload, self._procs(found.payload)):
            proc = _Found()
            check = self.run("mesh", "proc", "runs actors", lambda: proc.of(self._node(child), "Proc"))  # noqa: B023
            yield check._replace(name=f"{found.name}/{proc.name or child}")
            for leaf in _first(proc.payload, self._running(proc.payload)):
                actor = _Found()
                check = self.run("mesh", "actor", "handles messages", lambda: actor.of(self._node(leaf), "Actor"))  # noqa: B023
                yield check._replace(name=f"{found.name}/{proc.name}/{actor.name or leaf}")

    def _node(self, reference: str) -> NodePayload:
        return self._api.node(reference)

    def _procs(self, payload: NodePayload | None) -> Iterator[str]:
        """Procs that run: those that have ended are history."""
        system = facts_of(payload).get("system_children", ())
        for child in (payload["children"] if payload is not None else [])[:20]:
            if child in system:
                continue
            try:
                node = Node(self._node(child), 0)
            except (TelemetryError, OSError):
                # The check of the child reports the reason.
                yield child
                continue
            if node.kind != "Proc" or not has_ended(node):
                yield child

    def _running(self, payload: NodePayload | None) -> Iterator[str]:
        facts = facts_of(payload)
        stopped = {*facts.get("stopped_children", ())}
        return (child for child in (payload["children"] if payload is not None else []) if child not in stopped)


def _first(payload: NodePayload | None, children: Iterable[str]) -> list[str]:
    found = None if payload is None else next(iter(children), None)
    return [] if found is None else [found]


class _Found:
    """The node of a check."""

    def __init__(self) -> None:
        self.payload: NodePayload | None = None
        self.name = ""

    def of(self, payload: NodePayload, kind: str) -> str:
        """What is shown of the node. `_Warning` where its state is bad, `TelemetryError` where it is no such node."""
        self.payload = payload
        facts = facts_of(payload)
        found = kind_of(payload)
        if found == "Error":
            raise TelemetryError(f"{facts.get('code')}: {facts.get('message')}")
        if found != kind:
            raise TelemetryError(f"the node is a {found or 'node without a kind'}, not a {kind}")
        self.name = str(
            facts.get("name") or facts.get("proc_name") or f"{facts.get('actor_type', '')} {facts.get('instance_id', '')}".strip()
        )
        shown = _shown(kind, facts)
        if kind == "Host" and is_failed(Node(payload, 0)):
            raise TelemetryError(shown)
        if is_failed(Node(payload, 0)):
            raise _Warning(shown)
        return shown


def _shown(kind: str, facts: Any) -> str:
    if kind == "Host":
        reason = f": {facts['reason']}" if facts.get("reason") else ""
        return f"{facts.get('state')}{reason}, {facts.get('num_procs')} procs, {facts.get('addr')}"
    if kind == "Proc":
        failed = f", {facts['failed_actor_count']} failed" if facts.get("failed_actor_count") else ""
        return f"pid {facts.get('pid')}, {facts.get('num_actors')} actors{failed}"
    return f"{facts.get('actor_status')}, {facts.get('messages_processed')} messages"


def _served_by(api: Api) -> str:
    found = api.get("/v1/admin", NODE_SECONDS)
    return f"host {found['host'] or '?'}, proc {found['proc_id'] or '?'}"


def _openapi(api: Api) -> str:
    found = api.get("/v1/openapi.json", QUERY_SECONDS)
    return f"OpenAPI {found['openapi']}, {len(found['paths'])} paths"


def _root(api: Api, found: list[NodePayload]) -> str:
    root = api.root()
    found.append(root)
    facts = facts_of(root)
    return f"{facts.get('num_hosts')} hosts, started by {facts.get('started_by') or '?'}"


def _coverage(api: Api) -> str:
    answer = api.query("SELECT count(*) AS hosts FROM hosts")
    coverage = answer.coverage
    if coverage.missing or coverage.answered < coverage.asked:
        reasons = "; ".join(f"{host}: {reason}" for host, reason in coverage.missing)
        raise TelemetryError(f"{coverage.answered} of {coverage.asked} hosts answer: {reasons}")
    return f"{coverage.answered} of {coverage.asked} hosts answer"


def _dropped(api: Api) -> str:
    found = api.query(
        "SELECT table_name, sum(dropped) AS dropped, max(sample_weight) AS weight FROM telemetry_status GROUP BY table_name"
        " HAVING sum(dropped) > 0 OR max(sample_weight) > 1 ORDER BY table_name"
    ).rows
    if found:
        raise _Warning("; ".join(f"{row['table_name']}: {row['dropped']} dropped, weight {row['weight']:g}" for row in found))
    return "none"


def report(url: str, found: Iterable[Check]) -> dict[str, Any]:
    """The JSON report of `--diagnose`; `ok` is False where a check has failed."""
    all_checks = list(found)
    counts = {status: sum(check.status == status for check in all_checks) for status in ("ok", "warn", "fail")}
    return {
        "url": url,
        "ok": bool(all_checks) and counts["fail"] == 0,
        "counts": counts,
        "checks": [check._asdict() for check in all_checks],
    }
