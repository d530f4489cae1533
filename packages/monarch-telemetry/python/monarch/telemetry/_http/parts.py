"""What the application is made of. Each part is a protocol: the job gives those that it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from monarch.telemetry._asking import Asking
from monarch.telemetry._http.models import ActionAnswer, ConfigEntry, NodePayload, PyspyAnswer, QueryRow
from monarch.telemetry._http.problems import Problem

if TYPE_CHECKING:
    from monarch.telemetry._stacks.result import Ok


class Nodes(Protocol):
    """The topology of the job. Any thread."""

    def root(self, *, timeout: float) -> NodePayload: ...

    def node(self, reference: str, *, timeout: float) -> NodePayload | None:
        """None for a reference to nothing."""
        ...

    def tree(self, *, timeout: float) -> str: ...

    def proc_id(self, reference: str) -> int | None:
        """The number of the proc that a reference is to; None for a reference to anything else."""
        ...


class Actions(Protocol):
    """What may be done to a job. Any thread.

    `Problem` or a `TelemetryError` where an action is not possible; `done` is False where it failed.
    """

    def stop_mesh(self, mesh: str, *, reason: str | None) -> ActionAnswer: ...

    def kill_proc(self, proc_id: int) -> ActionAnswer: ...

    def signal_proc(self, proc_id: int, signal: int) -> ActionAnswer: ...

    def heal_job(self, job: str) -> ActionAnswer: ...

    def kill_job(self, job: str, *, reason: str | None) -> ActionAnswer: ...

    def set_log_level(self, proc_id: int | None, level: str) -> ActionAnswer:
        """None: of all procs. `level` is one of `actions.LEVELS`."""
        ...

    def dump_state(self, proc_id: int | None) -> ActionAnswer:
        """None: of the process that serves, with all procs of its job."""
        ...

    def cancel_query(self, query: str) -> ActionAnswer:
        """`query` is the number that `Parts.queries` has."""
        ...


class Stacks(Protocol):
    """The stacks of procs. Any thread; `timeout` is in seconds."""

    def merged(self, mesh: str | None, *, native: bool, locals: bool, timeout: float) -> dict[str, Any]:
        """The report of all procs, or of a mesh, as JSON."""
        ...

    def read(self, proc_id: int, *, timeout: float) -> PyspyAnswer: ...

    def store(self, proc_id: int, proc_ref: str, *, timeout: float) -> str:
        """Reads and stores; the dump's name. `Problem` where it cannot be read."""
        ...

    def keep(self, dump_id: str, proc_ref: str, stacks: Ok) -> None:
        """Stores stacks that were read elsewhere."""
        ...

    def profile_svg(
        self, proc_id: int, *, duration_s: float, rate_hz: int, native: bool, threads: bool, nonblocking: bool, timeout: float
    ) -> bytes: ...


class Settings(Protocol):
    """The settings of procs."""

    def config(self, proc_id: int, *, timeout: float) -> Sequence[ConfigEntry]:
        """Values of secrets may be there: the application masks them."""
        ...


class File(Protocol):
    """A file of the dashboard. `immutable` ones have another path when their bytes change; `status` is that of the answer."""

    @property
    def media(self) -> str: ...
    @property
    def data(self) -> bytes: ...
    @property
    def etag(self) -> str: ...
    @property
    def immutable(self) -> bool: ...
    @property
    def status(self) -> int: ...


class Parts(NamedTuple):
    """What answers requests; a part that is None is answered with 503.

    `metrics` gives a content type and a text of Prometheus for an `Accept` header, `ingest` takes rows of a table of snapshots, `files` the
    path of a file or page of the dashboard. `diagnosis` gives the JSON of a `DiagnosisAnswer` within a
    number of seconds. `audit` takes Arrow batches of the table audit, one at a time. `actor_id`, `proc_id` and `host`
    are those of the process that serves.
    """

    engine: Asking
    nodes: Nodes
    actions: Actions | None = None
    stacks: Stacks | None = None
    settings: Settings | None = None
    metrics: Callable[[str], tuple[str, bytes]] | None = None
    ingest: Callable[[str, Sequence[Any]], None] | None = None
    queries: Callable[[], Sequence[QueryRow]] | None = None
    audit: Callable[[Any], None] | None = None
    diagnosis: Callable[[float], Mapping[str, Any]] | None = None
    files: Callable[[str], File | None] | None = None
    actor_id: str = ""
    proc_id: str = ""
    host: str = ""


def need(part: Any, what: str) -> Any:
    """The part, or `Problem` 503."""
    if part is None:
        raise Problem.unavailable(f"this process does not offer {what}")
    return part
