"""The JSON of the dashboard API."""

from typing import Literal, NotRequired, TypedDict

from monarch.telemetry._http.models import CoverageAnswer, Row


class MeshCounts(TypedDict):
    total: int


class HierarchyCounts(TypedDict):
    host_meshes: int
    proc_meshes: int
    actor_meshes: int


class StatusCounts(TypedDict):
    total: int
    by_status: dict[str, int]


class MessageCounts(TypedDict):
    """`delivery_rate` is the part of the messages that was handled, from 0 to 1."""

    total: int
    by_status: dict[str, int]
    by_endpoint: dict[str, int]
    delivery_rate: float


class FailedActor(TypedDict):
    """An actor that failed or stopped."""

    actor_id: str
    full_name: str
    display_name: str | None
    mesh_id: str
    timestamp_us: int | None
    reason: str | None


class ErrorCounts(TypedDict):
    """At most 100 actors of each kind, the latest first."""

    failed_actors: list[FailedActor]
    stopped_actors: list[FailedActor]
    failed_messages: int


class Times(TypedDict):
    """What the tables have: times in microseconds since the epoch."""

    start_us: int | None
    end_us: int | None
    failure_onset_us: int | None
    total_status_events: int
    total_message_events: int


class SummaryAnswer(TypedDict):
    """The job in numbers; the health score is from 0 to 100."""

    mesh_counts: MeshCounts
    hierarchy_counts: HierarchyCounts
    actor_counts: StatusCounts
    message_counts: MessageCounts
    errors: ErrorCounts
    timeline: Times
    health_score: float


class Lifecycle(TypedDict):
    """Messages by their last status."""

    queued: int
    active: int
    completed: int
    failed: int


class EndpointCounts(TypedDict):
    endpoint: str | None
    total: int
    completed: int


class PairCounts(TypedDict):
    from_actor_id: str
    to_actor_id: str
    total: int


class MessageStatsAnswer(TypedDict):
    """Messages by status, endpoint, and pair of actors (the 100 with the most messages)."""

    lifecycle: Lifecycle
    endpoints: list[EndpointCounts]
    pairs: list[PairCounts]


class Bucket(TypedDict):
    start_us: int
    count: int


class MessageActivityAnswer(TypedDict):
    """Messages by time of receipt."""

    start_us: int | None
    end_us: int | None
    total: int
    buckets: list[Bucket]


class ActivityParameters(TypedDict):
    """A part of the time, in microseconds since the epoch, and the number of buckets (60)."""

    start_us: NotRequired[int]
    end_us: NotRequired[int]
    buckets: NotRequired[int]


class DagNode(TypedDict):
    """A node of the graph; `count` is the number of members of a mesh."""

    id: str
    entity_id: str
    tier: Literal["host_mesh", "proc_mesh", "actor_mesh", "host", "proc", "actor"]
    label: str
    subtitle: str | None
    status: str | None
    mesh_id: str | None
    rank: int | None
    is_system: bool
    count: int


class DagEdge(TypedDict):
    """`count` is the number of messages."""

    id: str
    source_id: str
    target_id: str
    type: Literal["hierarchy", "message"]
    count: int


class DagAnswer(TypedDict):
    """The graph of the job; `snapshot_partial` where nodes were left out."""

    nodes: list[DagNode]
    edges: list[DagEdge]
    snapshot_pending: bool
    snapshot_partial: bool
    resolution_error_count: int


class DagParameters(TypedDict):
    """`mode` mesh rolls up hosts, procs and actors into their meshes."""

    hide_system: NotRequired[bool]
    mode: NotRequired[Literal["actor", "mesh"]]


# `class` is a keyword of Python.
MeshesParameters = TypedDict(
    "MeshesParameters", {"class": NotRequired[str], "parent_mesh_id": NotRequired[int], "exclude_classes": NotRequired[str]}
)


class ChildrenParameters(TypedDict):
    """`exclude_classes` are separated by commas."""

    mesh_class: NotRequired[str]
    exclude_classes: NotRequired[str]


class ActorsParameters(TypedDict):
    mesh_id: NotRequired[int]


class MessagesParameters(TypedDict):
    """At most `limit` messages, the latest ones."""

    from_actor_id: NotRequired[int]
    to_actor_id: NotRequired[int]
    limit: NotRequired[int]


class StatusEventsParameters(TypedDict):
    message_id: NotRequired[int]
    limit: NotRequired[int]


class SentParameters(TypedDict):
    sender_actor_id: NotRequired[int]
    limit: NotRequired[int]


class SqlBody(TypedDict):
    """A statement."""

    sql: str


class SqlAnswer(TypedDict):
    """Rows; values of columns named `id` or `*_id` are strings."""

    rows: list[Row]
    coverage: CoverageAnswer


class StoredAnswer(TypedDict):
    """Rows that were stored."""

    rows: int


class PageAnswer(TypedDict):
    """A page; `cursor` is for the next one, null at the end."""

    rows: list[Row]
    coverage: CoverageAnswer
    cursor: str | None


class PageParameters(TypedDict):
    """Times are in microseconds since the epoch. With `order` asc there is always a cursor: later rows follow it."""

    cursor: NotRequired[str]
    limit: NotRequired[int]
    order: NotRequired[Literal["asc", "desc"]]
    since_us: NotRequired[int]
    until_us: NotRequired[int]


class LogsParameters(PageParameters):
    """`text` is a part of the line, upper and lower case alike."""

    mesh: NotRequired[str]
    rank: NotRequired[int]
    host: NotRequired[str]
    proc: NotRequired[str]
    actor_id: NotRequired[int]
    stream: NotRequired[Literal["stdout", "stderr", "logging", "system"]]
    level: NotRequired[str]
    text: NotRequired[str]


class MetricsParameters(PageParameters):
    name: NotRequired[str]
    kind: NotRequired[Literal["gauge", "sum", "histogram"]]


class DumpsParameters(PageParameters):
    """With `dump_id` the frames of that dump, else the dumps."""

    dump_id: NotRequired[str]


class TimelineParameters(PageParameters):
    process_id: NotRequired[int]
    name: NotRequired[str]
    trace_id: NotRequired[str]


class HostsParameters(TypedDict):
    cursor: NotRequired[str]
    limit: NotRequired[int]
