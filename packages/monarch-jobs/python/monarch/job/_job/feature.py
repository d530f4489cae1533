"""What a job carries besides its hosts: telemetry, an admin server, mounts. The types of the entry-point group `monarch.job_feature`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

if TYPE_CHECKING:
    from typing import Self

    from monarch.actor import HostMesh
    from monarch.job._client.keeper import Keeper
    from monarch.job._job.launcher import HealReport

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class JobControl:
    """What a feature may do to the job that carries it. `title` is how errors name the job. Any thread."""

    def __init__(self, job: _Controlled, title: str, apply_id: str) -> None:
        self._job = job
        self.title = title
        self.apply_id = apply_id

    def heal(self, *, timeout: float | None = None) -> HealReport:
        """See `JobTrait.heal`."""
        return self._job.heal(timeout=timeout)

    def kill(self) -> None:
        """See `JobTrait.kill`, which stops the feature too: a feature calls it on a thread that its own `stop` does not wait for."""
        self._job.kill()


class _Controlled(Protocol):
    def heal(self, *, timeout: float | None = None) -> HealReport: ...
    def kill(self) -> None: ...


class FeatureHosts(NamedTuple):
    """The allocation that a feature starts on: how errors name the job, its `apply_id`, its meshes by name, and the job's keeper.

    `control` heals and kills the job. It and `keeper` are None only where a test calls the feature itself.
    """

    title: str
    apply_id: str
    meshes: Mapping[str, HostMesh]
    keeper: Keeper | None = None
    control: JobControl | None = None


class Offer(NamedTuple):
    """The additions of a started feature to the `JobState`: attributes, and host meshes that replace meshes with the same names."""

    attributes: Mapping[str, Any] = _NOTHING
    meshes: Mapping[str, HostMesh] = _NOTHING


class JobFeature(ABC):
    """A feature of a job, as the job is configured with it. An entry point of the group `monarch.job_feature` is a subclass.

    The constructor takes the arguments of the method of the job that adds the feature, checks them, and starts nothing.
    """

    # A start that raises, or exceeds `start_seconds`, is one warning and no error of `state()`. It runs on a thread of its own.
    best_effort: ClassVar[bool] = False
    start_seconds: ClassVar[float] = 30.0
    # Seconds that `kill()` waits for `stop`.
    stop_seconds: ClassVar[float] = 5.0
    # A job may have several features of this class with different arguments, such as mounts; otherwise a second one replaces the first.
    several: ClassVar[bool] = False
    # The start waits for the hosts. If they are in a queue, `state()` does not wait: it uses the result of `promised`, and `keep` is called
    # when they have joined, on another thread, before the handles of this `state()` reach them.
    needs_hosts: ClassVar[bool] = False

    @abstractmethod
    def dump(self) -> dict[str, Any]:
        """The configuration, and what another process needs to go on with it, as JSON; never a secret."""

    @classmethod
    @abstractmethod
    def load(cls, saved: dict[str, Any]) -> Self:
        """The feature out of what `dump` gave."""

    @abstractmethod
    def start(self, hosts: FeatureHosts) -> Offer:
        """Starts on these hosts. Every `state()` calls it; what runs already is refreshed."""

    def promised(self, hosts: FeatureHosts) -> Offer:
        """What `start` will offer, before the hosts are there; raises for arguments that cannot be right."""
        return Offer()

    def keep(self, hosts: FeatureHosts) -> None:
        """Starts what was promised. Nothing may be run on `hosts.meshes`, which wait for it; what this raises, their users get."""
        self.start(hosts)

    @abstractmethod
    def stop(self) -> None:
        """Ends it, also what another process has started. Called by `kill()`, and for a feature that the job no longer asks for."""


class TelemetryFeature(JobFeature):
    """The feature `telemetry`, which two methods of a job ask for more than its start."""

    @abstractmethod
    def profile(self, on_trace_ready: Callable[..., Any] | None) -> Any:
        """For `JobTrait.profile`."""

    @abstractmethod
    def query_client(self) -> Any:
        """For `JobTrait.telemetry_query_client`."""


for _public in (FeatureHosts, JobControl, JobFeature, Offer, TelemetryFeature):
    _public.__module__ = "monarch.job"
