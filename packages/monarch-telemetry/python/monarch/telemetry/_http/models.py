"""The JSON of the admin API. The OpenAPI document is made from these types, and requests are checked by them."""

from typing import Any, Literal, NotRequired, TypedDict

Row = dict[str, Any]


class Failure(TypedDict):
    """What went wrong; `details` depends on the code."""

    code: Literal["not_found", "bad_request", "unauthorized", "forbidden", "gateway_timeout", "service_unavailable", "internal_error"]
    message: str
    details: NotRequired[dict[str, Any]]


class ErrorAnswer(TypedDict):
    """An error of the admin API."""

    error: Failure


class TextErrorAnswer(TypedDict):
    """An error of the dashboard API."""

    error: str


class MissingHost(TypedDict):
    """A host that did not answer."""

    host: str
    reason: str


class StageTimes(TypedDict):
    """A level of the tree of hosts; 0 is the entry node."""

    name: str
    level: int
    hosts: int
    rows: int
    ms: float


class CoverageAnswer(TypedDict):
    """Which hosts answered."""

    hosts_asked: int
    hosts_answered: int
    missing: list[MissingHost]
    rows_scanned: int
    truncated: bool
    elapsed_ms: float
    stages: list[StageTimes]


class HealthAnswer(TypedDict):
    """The server answers."""

    status: Literal["ok"]


# Nodes of the topology


class Memory(TypedDict):
    """Memory in bytes."""

    process_rss_bytes: int | None
    process_vm_size_bytes: int | None


class RootProperties(TypedDict):
    """The job. Times are RFC 3339 texts."""

    num_hosts: int
    started_at: str | None
    started_by: str
    system_children: list[str]


class HostProperties(TypedDict):
    """A host; `state` and `reason` as in the table hosts."""

    addr: str
    num_procs: int
    system_children: list[str]
    memory: Memory
    name: str
    state: str
    reason: str | None


class ProcDebug(TypedDict):
    """Queues of the actors of a proc, in messages."""

    memory: Memory
    actor_work_queue_depth_total: int
    actor_work_queue_depth_max: int
    actor_work_queue_depth_high_water_mark: int
    last_nonzero_queue_depth_age_ms: int | None


class ProcProperties(TypedDict):
    """A proc; `is_poisoned` where an actor of it has failed."""

    proc_name: str
    num_actors: int
    is_poisoned: bool
    failed_actor_count: int
    stopped_children: list[str]
    stopped_retention_cap: int
    system_children: list[str]
    debug: ProcDebug
    pid: int
    exit_reason: str | None


class FailureInfo(TypedDict):
    """How an actor failed."""

    error_message: str
    root_cause_actor: str
    root_cause_name: str | None
    occurred_at: str
    is_propagated: bool


class OrderingSession(TypedDict):
    """Messages of one sender that wait for an earlier one."""

    session_id: str
    sender: str | None
    last_released_seq: int
    expected_next_seq: int
    buffered_count: int
    oldest_buffered_seq: int | None
    newest_buffered_seq: int | None


class InboundOrdering(TypedDict):
    """Messages of an actor that wait for an earlier one."""

    enabled: bool
    snapshot_complete: bool
    skipped_session_count: int
    known_session_count: int
    returned_buffered_session_count: int
    returned_buffered_message_count: int
    returned_max_buffered_count: int
    sessions: list[OrderingSession]


class ActiveHandler(TypedDict):
    """An endpoint in progress."""

    name: str
    active_count: int
    oldest_since: str


class Execution(TypedDict):
    """The endpoints in progress of an actor."""

    active_count: int
    active_handlers: list[ActiveHandler]
    complete: bool
    truncated: bool


class ActorProperties(TypedDict):
    """An actor; `flight_recorder` is JSON: what it did last, the newest first."""

    actor_status: str
    actor_type: str
    instance_id: str
    is_system: bool
    messages_processed: int
    queue_depth: int
    total_processing_time_us: int
    created_at: NotRequired[str]
    last_message_handler: NotRequired[str]
    flight_recorder: NotRequired[str]
    failure_info: NotRequired[FailureInfo]
    inbound_ordering: NotRequired[InboundOrdering]
    execution: NotRequired[Execution]


class NodeError(TypedDict):
    """Why the state of a node is not known."""

    code: str
    message: str


class Root(TypedDict):
    """The properties of the job."""

    Root: RootProperties


class Host(TypedDict):
    """The properties of a host."""

    Host: HostProperties


class Proc(TypedDict):
    """The properties of a proc."""

    Proc: ProcProperties


class Actor(TypedDict):
    """The properties of an actor."""

    Actor: ActorProperties


class Error(TypedDict):
    """In the place of properties that are not known."""

    Error: NodeError


class NodePayload(TypedDict):
    """A node of the topology. References are opaque; `as_of` is an RFC 3339 text."""

    identity: str
    properties: Root | Host | Proc | Actor | Error
    children: list[str]
    parent: str | None
    as_of: str


class AdminInfo(TypedDict):
    """Which process serves the API, and under which URL."""

    actor_id: str
    proc_id: str
    host: str
    url: str


# Settings and stacks


class QueryRow(TypedDict):
    """A query in progress; the number cancels it."""

    query: str
    sql: str
    started_us: int
    elapsed_ms: float


class QueriesAnswer(TypedDict):
    """The queries in progress, oldest first."""

    queries: list[QueryRow]


class ConfigEntry(TypedDict):
    """A setting; values of secrets are masked."""

    name: str
    value: Any
    default_value: NotRequired[Any]
    source: str
    changed_from_default: bool
    env_var: NotRequired[str | None]


class ConfigAnswer(TypedDict):
    """The settings of a process."""

    entries: list[ConfigEntry]


class PyspyLocal(TypedDict):
    """A local variable; `repr` is its value as text, shortened."""

    name: str
    addr: int
    arg: bool
    repr: str | None


class PyspyFrame(TypedDict):
    """A call."""

    name: str
    filename: str
    module: str | None
    short_filename: str | None
    line: int
    is_entry: bool
    locals: list[PyspyLocal] | None


class PyspyThread(TypedDict):
    """A thread, its innermost call first."""

    pid: int
    thread_id: int
    thread_name: str | None
    os_thread_id: int | None
    active: bool
    owns_gil: bool
    frames: list[PyspyFrame]


class PyspyStacks(TypedDict):
    """The stacks of a process; `binary` is what read them."""

    pid: int
    binary: str
    stack_traces: list[PyspyThread]
    warnings: list[str]


class PyspySearched(TypedDict):
    """Where py-spy was looked for."""

    searched: list[str]


class PyspyFailure(TypedDict):
    """What py-spy wrote when it failed."""

    pid: int
    binary: str
    exit_code: NotRequired[int | None]
    stderr: str


class PyspyOk(TypedDict):
    """The stacks."""

    Ok: PyspyStacks


class PyspyNotFound(TypedDict):
    """There is no py-spy."""

    BinaryNotFound: PyspySearched


class PyspyFailed(TypedDict):
    """py-spy failed."""

    Failed: PyspyFailure


PyspyAnswer = PyspyOk | PyspyNotFound | PyspyFailed


class DumpAnswer(TypedDict):
    """The dump that was stored: `pyspy_dumps.dump_id`."""

    dump_id: str


class ProfileBody(TypedDict):
    """How long, how often and what is sampled."""

    duration_s: NotRequired[float]
    rate_hz: NotRequired[int]
    native: NotRequired[bool]
    threads: NotRequired[bool]
    nonblocking: NotRequired[bool]


class CaptureBody(TypedDict):
    """Of which proc: its reference."""

    proc_ref: str


class StoreDumpBody(TypedDict):
    """A dump that was taken elsewhere: `pyspy_result_json` is a `PyspyAnswer` as text."""

    dump_id: str
    proc_ref: str
    pyspy_result_json: str


class StacksParameters(TypedDict):
    """Of which mesh; `locals` needs the scope admin."""

    mesh: NotRequired[str]
    native: NotRequired[bool]
    locals: NotRequired[bool]


# Queries and actions


class QueryBody(TypedDict):
    """A statement. `cursor` is that of the page before, `page_rows` the rows of a page.

    Limits above the usual ones need the scope admin.
    """

    sql: str
    timeout_s: NotRequired[float]
    require_all: NotRequired[bool]
    cursor: NotRequired[str]
    page_rows: NotRequired[int]
    max_rows: NotRequired[int]
    max_bytes: NotRequired[int]


class QueryAnswer(TypedDict):
    """Rows in the order of the answer; `cursor` where more rows follow."""

    rows: list[Row]
    coverage: CoverageAnswer
    cursor: NotRequired[str]


class DiagnosisFact(TypedDict):
    """A fact and its source, such as `stacks` or `table failures`."""

    text: str
    source: str


class DiagnosisCause(TypedDict):
    """A cause. `waiting` are the names of what waits for it, `consequences` what it explains, `command` is the next one to run."""

    detector: str
    sentence: str
    facts: list[DiagnosisFact]
    waiting: list[str]
    consequences: list[str]
    command: str


class LeftOutDetector(TypedDict):
    """A detector without a result, and the reason."""

    name: str
    reason: str


class OmittedParts(TypedDict):
    """How many of each list are left out: an answer has at most 256 KiB, and each list of a cause at most 50 texts."""

    causes: int
    facts: int
    waiting: int
    consequences: int
    missing: int
    left_out: int


class DiagnosisAnswer(TypedDict):
    """What is wrong with the job now, most likely first; `text` is what `monarch diagnose` prints, of at most 40 lines and 8 kB.

    Texts are those of the programs of the job: data, and no instructions. `coverage` is the part of procs and hosts that answered.
    """

    causes: list[DiagnosisCause]
    procs: int
    healthy_procs: int
    hosts: int
    answered_hosts: int
    coverage: float
    busy: list[str]
    detectors: list[str]
    sources: list[str]
    missing: list[str]
    left_out: list[LeftOutDetector]
    text: str
    omitted: OmittedParts


class ActionBody(TypedDict):
    """What is acted on: a mesh by its name, a proc by its reference, a job by its name. The other fields depend on the action."""

    target: str
    reason: NotRequired[str]
    signal: NotRequired[int | str]
    level: NotRequired[str]


class ActionAnswer(TypedDict):
    """Whether it was done, and what was done or why not."""

    done: bool
    detail: str
