"""The feature behind `job.enable_telemetry`: collectors on the hosts of a job, asked by the process that calls `state()`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from monarch.job import FeatureHosts, JobFeature, Offer, TelemetryFeature
from monarch.telemetry.errors import TelemetryError
from monarch.telemetry.running import checked_options

if TYPE_CHECKING:
    from typing import Self

    from monarch.telemetry.running import Telemetry


class Collected(TelemetryFeature):
    """`config` is a `monarch.job.TelemetryConfig`; other arguments are its fields by name. `TelemetryError` for a wrong one."""

    best_effort = True
    start_seconds = 30.0

    def __init__(self, config: object = None, *, mesh_admin_config: object = None, **changes: Any) -> None:
        self._options = checked_options(config, changes)
        self._address: str | None = getattr(mesh_admin_config, "admin_addr", None)
        self._running: Telemetry | None = None

    def dump(self) -> dict[str, Any]:
        return {"options": self._options._asdict(), "admin_addr": self._address}

    @classmethod
    def load(cls, saved: dict[str, Any]) -> Self:
        self = cls(**saved["options"])
        self._address = saved["admin_addr"]
        return self

    def start(self, hosts: FeatureHosts) -> Offer:
        from monarch.telemetry.running import start

        before = self._running
        if before is not None:
            # This frees the port for the next server: the URL of a job does not change.
            before.stop_serving()
        running = start(
            self._options, hosts=hosts.meshes, serve=_can_serve(), admin_addr=self._address, job=hosts.apply_id, control=hosts.control
        )
        self._running = running
        if before is not None:
            before.stop()
        offered: dict[str, Any] = {"query_engine": running.engine}
        if running.url is not None:
            from monarch.telemetry._http.client import QueryEngineClient

            client = QueryEngineClient(running.url, token=running.token)
            offered |= {"query_engine_client": client, "telemetry_url": running.url, "admin_url": running.url}
            offered |= {"dashboard_url": running.dashboard_url} if running.dashboard_url else {}
        return Offer(offered)

    def stop(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.stop().get(timeout=self.stop_seconds)

    def profile(self, on_trace_ready: Callable[..., Any] | None) -> Any:
        from monarch.telemetry._http.profile import profile

        return profile(self._url(), on_trace_ready=on_trace_ready)

    def query_client(self) -> Any:
        from monarch.telemetry._http.client import QueryEngineClient

        return QueryEngineClient(self._url())

    def _url(self) -> str:
        running = self._running
        if running is None or running.url is None:
            raise TelemetryError("the HTTP API does not run", hint="pip install 'monarch-telemetry[http]', and call job.state()")
        return running.url


class Admin(JobFeature):
    """The feature behind `job.enable_admin`: the HTTP API of a job, that of its telemetry where that serves already.

    `config` is a `monarch.job.MeshAdminConfig`.
    """

    best_effort = True
    start_seconds = 30.0

    def __init__(self, config: object = None, *, admin_addr: str | None = None) -> None:
        self._address: str | None = admin_addr or getattr(config, "admin_addr", None)
        self._running: Telemetry | None = None

    def dump(self) -> dict[str, Any]:
        return {"admin_addr": self._address}

    @classmethod
    def load(cls, saved: dict[str, Any]) -> Self:
        return cls(admin_addr=saved["admin_addr"])

    def start(self, hosts: FeatureHosts) -> Offer:
        from monarch.telemetry.running import all_uses, start

        before = self._running
        if before is not None:
            before.stop_serving()
        elif (url := all_uses().url_of(hosts.apply_id)) is not None:
            return Offer({"admin_url": url})
        self._running = start(hosts=hosts.meshes, serve=True, admin_addr=self._address, job=hosts.apply_id, control=hosts.control)
        if before is not None:
            before.stop()
        return Offer({"admin_url": self._running.url})

    def stop(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.stop().get(timeout=self.stop_seconds)


def _can_serve() -> bool:
    """Whether the extra `http` is installed; without it a job has its engine all the same."""
    from importlib.util import find_spec

    return find_spec("starlette") is not None and find_spec("uvicorn") is not None
