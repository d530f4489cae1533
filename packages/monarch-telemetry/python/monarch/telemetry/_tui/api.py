"""What the terminal UI asks of a job: requests to its HTTP API, each with a time limit. They block: threads run them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, cast
from urllib.parse import quote, urlencode

from monarch.telemetry._http.http_client import parsed
from monarch.telemetry._http.json_rows import like
from monarch.telemetry._http.models import NodePayload
from monarch.telemetry._http.references import Reference
from monarch.telemetry._stacks.merged import StackReport
from monarch.telemetry.errors import TelemetryError

# Timeouts in seconds. A healthy server answers a node within one second, stacks within ten.
NODE_SECONDS, QUERY_SECONDS, STACK_SECONDS, ACTION_SECONDS = 5.0, 10.0, 15.0, 130.0
DIAGNOSIS_SECONDS = 32.0
# The most rows of a statement of the user, and of a search.
MOST_ROWS, MOST_FOUND = 1_000, 200
# The most ids in one statement: a statement has at most 16 KiB.
_IDS = 400
# A busy server answers a node without the parts that it did not find in time, such as the parent.
_TRIES = 3

Row = dict[str, Any]


class Client(Protocol):
    """See `HttpClient`."""

    url: str

    def get(self, path: str, seconds: float) -> bytes: ...

    def post(self, path: str, body: dict[str, Any], seconds: float) -> bytes: ...


class Coverage(NamedTuple):
    """Which hosts answered; `missing` has those that did not, with reasons."""

    asked: int
    answered: int
    missing: tuple[tuple[str, str], ...]
    truncated: bool
    elapsed_ms: float


class Answer(NamedTuple):
    """Rows, and whether more follow."""

    rows: list[Row]
    coverage: Coverage
    more: bool


class Done(NamedTuple):
    """Whether an action was done, and what was done or why not."""

    done: bool
    detail: str


class Api:
    """Requests to one server. Any thread. `TelemetryError` where there is no answer, or none of this API."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.url = client.url

    def get(self, path: str, seconds: float) -> Any:
        """The JSON of an answer."""
        return parsed(self._client.get(path, seconds), self.url)

    def text(self, path: str, seconds: float) -> str:
        """An answer that is a text."""
        return self._client.get(path, seconds).decode(errors="replace")

    def root(self) -> NodePayload:
        return self._node(self.get("/v1/root", NODE_SECONDS))

    def node(self, reference: str) -> NodePayload:
        return self._node(self.get(f"/v1/{quote(reference, safe='')}", NODE_SECONDS))

    def _node(self, found: Any) -> NodePayload:
        fields = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
        properties: Any = fields.get("properties")
        children: Any = fields.get("children")
        if not isinstance(fields.get("identity"), str) or not isinstance(properties, dict) or not isinstance(children, list):
            raise TelemetryError(f"{self.url} answers no node: it is another server, or of another version")
        return cast("NodePayload", {**fields, "parent": fields.get("parent"), "as_of": str(fields.get("as_of", ""))})

    def config(self, proc: str) -> list[Row]:
        """The settings of a proc."""
        return _rows(self.get(f"/v1/config/{quote(proc, safe='')}", QUERY_SECONDS), "entries")

    def stacks_of(self, proc: str) -> Row:
        """The stacks of a proc: `PyspyAnswer`."""
        found = self.get(f"/v1/pyspy/{quote(proc, safe='')}", STACK_SECONDS)
        return cast("Row", found) if isinstance(found, dict) else {}

    def stacks(self) -> StackReport:
        """The merged stacks of all procs."""
        return StackReport.from_json(self.get("/v1/stacks", STACK_SECONDS))

    def diagnosis(self) -> Row:
        """What is wrong with the job: `DiagnosisAnswer`."""
        found = self.get("/v1/diagnose", DIAGNOSIS_SECONDS)
        return cast("Row", found) if isinstance(found, dict) else {}

    def query(self, sql: str, *, rows: int = MOST_ROWS, seconds: float = QUERY_SECONDS) -> Answer:
        """The first rows that a statement selects."""
        body: dict[str, Any] = {"sql": sql, "page_rows": rows, "timeout_s": seconds}
        found = parsed(self._client.post("/v1/query", body, seconds + 2), self.url)
        return Answer(_rows(found, "rows"), _coverage(found), bool(cast("Row", found).get("cursor")))

    def logs(self, **conditions: Any) -> Answer:
        """Lines, the newest first: `GET /api/logs`."""
        given = {name: value for name, value in conditions.items() if value is not None}
        found = self.get(f"/api/logs?{urlencode({'order': 'desc', **given})}", QUERY_SECONDS)
        return Answer(_rows(found, "rows"), _coverage(found), bool(cast("Row", found).get("cursor")))

    def names(self, numbers: list[str]) -> dict[str, str]:
        """Display names of actors by their number."""
        found: dict[str, str] = {}
        for at in range(0, len(numbers), _IDS):
            ids = ", ".join(str(int(one)) for one in numbers[at : at + _IDS])
            sql = f"SELECT CAST(id AS VARCHAR) AS id, coalesce(display_name, full_name) AS name FROM actors WHERE id IN ({ids})"
            found.update({str(row["id"]): str(row["name"]) for row in self.query(sql, rows=_IDS).rows})
        return found

    def failures(self) -> tuple[int, Coverage]:
        """How many failures there were, and who answered."""
        answer = self.query("SELECT count(*) AS failures FROM failures", seconds=NODE_SECONDS)
        return int(answer.rows[0]["failures"]) if answer.rows else 0, answer.coverage

    def search(self, text: str) -> Answer:
        """Hosts, procs and actors whose name has the text: `kind`, `id`, `name`, `state`."""
        part = like(text)
        proc = "concat(coalesce(m.given_name, 'proc'), '[', CAST(p.rank AS VARCHAR), ']')"
        sql = (
            "SELECT kind, id, name, state FROM ("
            "SELECT 1 AS place, 'host' AS kind, CAST(host_id AS VARCHAR) AS id, name, state FROM hosts"
            f" WHERE name ILIKE {part} OR address ILIKE {part} UNION ALL "
            "SELECT 2 AS place, 'proc' AS kind, CAST(p.proc_id AS VARCHAR) AS id,"
            f" {proc} AS name,"
            " CASE WHEN p.ended_us IS NULL THEN concat('pid ', CAST(p.pid AS VARCHAR)) ELSE coalesce(p.exit_reason, 'ended') END AS state"
            f" FROM procs p LEFT JOIN meshes m ON m.id = p.mesh_id WHERE {proc} ILIKE {part} UNION ALL "
            "SELECT 3 AS place, 'actor' AS kind, CAST(a.id AS VARCHAR) AS id, coalesce(a.display_name, a.full_name) AS name,"
            " '' AS state FROM actors a"
            f" WHERE coalesce(a.display_name, a.full_name) ILIKE {part} OR a.full_name ILIKE {part}"
            f") ORDER BY place, name, id LIMIT {MOST_FOUND + 1}"
        )
        found = self.query(sql, rows=MOST_FOUND + 1)
        return found._replace(rows=found.rows[:MOST_FOUND], more=len(found.rows) > MOST_FOUND)

    def path_to(self, kind: str, number: str) -> list[NodePayload]:
        """A node with those above it, the job first. `TelemetryError` where the server does not find them in its time."""
        for _ in range(_TRIES):
            found = self._path(kind, number)
            if "Root" in found[0]["properties"]:
                return found
        raise TelemetryError(f"the place of {kind} {number} in the job was not found in time", hint="choose it again")

    def _path(self, kind: str, number: str) -> list[NodePayload]:
        found: list[NodePayload] = []
        reference: str | None = str(Reference(kind, int(number)))
        seen: set[str] = set()
        while reference is not None and reference not in seen:
            seen.add(reference)
            node = self.node(reference)
            found.append(node)
            reference = node["parent"]
        return found[::-1]

    def mesh_of(self, actor: str) -> str | None:
        """The full name of the mesh of an actor."""
        found = self.query(f"SELECT m.full_name FROM actors a JOIN meshes m ON m.id = a.mesh_id WHERE a.id = {int(actor)}")
        return str(found.rows[0]["full_name"]) if found.rows else None

    def act(self, action: str, target: str, more: Mapping[str, Any]) -> Done:
        """`POST /v1/actions/<action>`."""
        answer = json.loads(self._client.post(f"/v1/actions/{action}", {"target": target, **more}, ACTION_SECONDS))
        return Done(bool(answer.get("done")), str(answer.get("detail", "")))


def _rows(found: Any, key: str) -> list[Row]:
    rows: Any = cast("Row", found).get(key) if isinstance(found, dict) else None
    if not isinstance(rows, list):
        raise TelemetryError(f"the server answers without {key}: it is another server, or of another version")
    return cast("list[Row]", rows)


def _coverage(found: Any) -> Coverage:
    fields: Row = cast("Row", found).get("coverage") or {}
    missing = tuple((str(one.get("host")), str(one.get("reason"))) for one in fields.get("missing", ()))
    asked, answered = int(fields.get("hosts_asked", 0)), int(fields.get("hosts_answered", 0))
    return Coverage(asked, answered, missing, bool(fields.get("truncated")), float(fields.get("elapsed_ms", 0)))
