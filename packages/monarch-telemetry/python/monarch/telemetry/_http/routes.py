"""Every route of the API: the one table. The OpenAPI document, the application and the tests are made from it."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from monarch.telemetry._http import dashboard_models as dashboard
from monarch.telemetry._http import models

Scope = Literal["none", "read", "admin"]
JSON, TEXT, ARROW, SVG = "application/json", "text/plain", "application/vnd.apache.arrow.stream", "image/svg+xml"
OPENMETRICS = "application/openmetrics-text"
EVENTS, MARKDOWN = "text/event-stream", "text/markdown"
# The most bytes of a body.
JSON_BYTES, ARROW_BYTES = 1 << 20, 64 << 20
ACTIONS = ("stop_mesh", "kill_proc", "signal_proc", "heal_job", "kill_job", "set_log_level", "dump_state", "cancel_query")


class Route(NamedTuple):
    """A method and a path; parts of the path in braces are parameters.

    `answer` is a model, or None for one that is no JSON, which `media` names then. `body` is a model, or `ARROW`. The request is answered
    within `seconds`, unless its handler sets another time. Of routes with `turns`, a user has two in progress at a time.
    """

    operation: str
    method: Literal["GET", "POST"]
    path: str
    scope: Scope
    summary: str
    answer: Any = None
    media: tuple[str, ...] = (JSON,)
    parameters: Any = None
    body: Any = None
    seconds: float = 10.0
    body_bytes: int = JSON_BYTES
    turns: bool = False

    @property
    def is_dashboard(self) -> bool:
        """Whether errors are `{"error": text}`."""
        return self.path.startswith("/api/")


_NODE, _TREE, _STACKS, _CONFIG, _LISTS = 1.0, 10.0, 10.0, 5.0, 10.0
# Two looks of at most twelve seconds each, and a statement.
_DIAGNOSIS = 30.0
# A profile takes at most 300 s, and its graph is drawn afterwards. A query of an administrator takes at most 600 s.
_PROFILE, QUERY_SECONDS = 330.0, 600.0


# Actions that wait for clean-ups, and for a scheduler.
_ACTION_SECONDS = {"stop_mesh": 60.0, "heal_job": 120.0}


def _admin() -> tuple[Route, ...]:
    read, admin = "read", "admin"
    return (
        Route("health", "GET", "/healthz", "none", "The server answers", models.HealthAnswer),
        Route("openapi", "GET", "/v1/openapi.json", read, "This document", dict[str, Any]),
        Route("root", "GET", "/v1/root", read, "The job, and its hosts", models.NodePayload, seconds=_NODE),
        Route("tree", "GET", "/v1/tree", read, "The topology as text", media=(TEXT,), seconds=_TREE),
        Route("admin", "GET", "/v1/admin", read, "Which process serves this", models.AdminInfo),
        Route("schema", "GET", "/v1/schema", read, "The JSON Schema of a node", dict[str, Any]),
        Route("schema_admin", "GET", "/v1/schema/admin", read, "The JSON Schema of /v1/admin", dict[str, Any]),
        Route("schema_error", "GET", "/v1/schema/error", read, "The JSON Schema of errors", dict[str, Any]),
        Route("skill", "GET", "/SKILL.md", read, "A guide for agents", media=(MARKDOWN,)),
        Route("config", "GET", "/v1/config/{proc}", read, "The settings of a proc", models.ConfigAnswer, seconds=_CONFIG),
        Route("pyspy", "GET", "/v1/pyspy/{proc}", read, "The stacks of a proc, read from outside", models.PyspyAnswer, seconds=_STACKS),
        Route("pyspy_dump", "POST", "/v1/pyspy_dump/{proc}", read, "Reads and stores the stacks of a proc", models.DumpAnswer),
        Route(
            "pyspy_profile_svg",
            "POST",
            "/v1/pyspy_profile_svg/{proc}",
            admin,
            "Samples the stacks of a proc: a flame graph",
            media=(SVG,),
            body=models.ProfileBody,
            seconds=_PROFILE,
        ),
        Route(
            "query",
            "POST",
            "/v1/query",
            read,
            "Runs a statement that reads; as JSON by pages, or as an Arrow stream",
            models.QueryAnswer,
            (JSON, ARROW),
            body=models.QueryBody,
            seconds=QUERY_SECONDS,
            turns=True,
        ),
        Route(
            "queries", "GET", "/v1/queries", read, "The queries in progress, by the numbers that cancel_query takes", models.QueriesAnswer
        ),
        Route("stacks", "GET", "/v1/stacks", read, "The merged stacks of all procs", dict[str, Any], parameters=models.StacksParameters),
        Route(
            "diagnose",
            "GET",
            "/v1/diagnose",
            read,
            "Finds what is wrong with the job now; asks all procs when it is called, and never else",
            models.DiagnosisAnswer,
            seconds=_DIAGNOSIS,
            turns=True,
        ),
        *(
            Route(
                f"action_{name}",
                "POST",
                f"/v1/actions/{name}",
                admin,
                _ACTION[name],
                models.ActionAnswer,
                body=models.ActionBody,
                seconds=_ACTION_SECONDS.get(name, 15.0),
            )
            for name in ACTIONS
        ),
        Route("events", "GET", "/v1/events", read, "Failures, and actors that were made, stop or fail, as it happens", media=(EVENTS,)),
        Route("metrics", "GET", "/metrics", read, "The metrics of the job, for Prometheus", media=(TEXT, OPENMETRICS)),
        # After all other routes of one part: this one matches them too.
        Route("node", "GET", "/v1/{reference}", read, "A node of the topology by its reference", models.NodePayload, seconds=_NODE),
    )


_ACTION = {
    "stop_mesh": "Stops a mesh",
    "kill_proc": "Ends a proc at once",
    "signal_proc": "Sends a signal to a proc",
    "heal_job": "Asks the scheduler for hosts in the place of lost ones",
    "kill_job": "Ends the job",
    "set_log_level": "Sets the level of Python's logging in a proc or in all",
    "dump_state": "Writes the state of a proc to a file, whose path is in the answer",
    "cancel_query": "Ends a query that is running",
}


def _dashboard() -> tuple[Route, ...]:
    def get(operation: str, path: str, summary: str, answer: Any, parameters: Any = None) -> Route:
        return Route(f"api_{operation}", "GET", f"/api/{path}", "read", summary, answer, parameters=parameters, seconds=_LISTS)

    rows = list[models.Row]
    return (
        get("health", "health", "The server answers", models.HealthAnswer),
        get("summary", "summary", "The job in numbers", dashboard.SummaryAnswer),
        get("message_stats", "message-stats", "Messages by status, endpoint and pair", dashboard.MessageStatsAnswer),
        get("message_activity", "message-activity", "Messages by time", dashboard.MessageActivityAnswer, dashboard.ActivityParameters),
        get("dag", "dag", "The graph of the job", dashboard.DagAnswer, dashboard.DagParameters),
        get("meshes", "meshes", "Meshes", rows, dashboard.MeshesParameters),
        get("mesh", "meshes/{id}", "A mesh", models.Row),
        get("mesh_children", "meshes/{id}/children", "Meshes that were spawned on a mesh", rows, dashboard.ChildrenParameters),
        get("actors", "actors", "Actors with their status", rows, dashboard.ActorsParameters),
        get("actor", "actors/{id}", "An actor with its status", models.Row),
        get("actor_status_events", "actors/{id}/status_events", "Changes of the status of an actor", rows),
        get("actor_messages", "actors/{id}/messages", "Messages from and to an actor", rows),
        get("messages", "messages", "Messages", rows, dashboard.MessagesParameters),
        get("message_status_events", "message_status_events", "Changes of the status of messages", rows, dashboard.StatusEventsParameters),
        get("sent_messages", "sent_messages", "Calls and casts at their senders", rows, dashboard.SentParameters),
        Route(
            "api_query",
            "POST",
            "/api/query",
            "read",
            "Runs a statement that reads",
            dashboard.SqlAnswer,
            body=dashboard.SqlBody,
            seconds=15.0,
            turns=True,
        ),
        Route(
            "api_pyspy_capture",
            "POST",
            "/api/pyspy/capture",
            "read",
            "Reads and stores the stacks of a proc",
            models.DumpAnswer,
            body=models.CaptureBody,
            seconds=_STACKS,
        ),
        Route(
            "api_pyspy_dump",
            "POST",
            "/api/pyspy_dump",
            "admin",
            "Stores a dump that was taken elsewhere",
            models.DumpAnswer,
            body=models.StoreDumpBody,
            seconds=_STACKS,
        ),
        Route(
            "api_ingest_snapshot",
            "POST",
            "/api/ingest_snapshot/{table}",
            "admin",
            "Adds rows to a table of snapshots",
            dashboard.StoredAnswer,
            body=ARROW,
            body_bytes=ARROW_BYTES,
            seconds=30.0,
        ),
        get("logs", "logs", "Lines of output and logging", dashboard.PageAnswer, dashboard.LogsParameters),
        get("metrics", "metrics", "Values of metrics", dashboard.PageAnswer, dashboard.MetricsParameters),
        get("stacks", "stacks", "Stored stacks", dashboard.PageAnswer, dashboard.DumpsParameters),
        get("timeline", "timeline", "Spans with their ends", dashboard.PageAnswer, dashboard.TimelineParameters),
        get("hosts", "hosts", "Hosts with their procs and their use", dashboard.PageAnswer, dashboard.HostsParameters),
    )


ROUTES: tuple[Route, ...] = (*_admin(), *_dashboard())
