"""Settings of components that can be switched on beside the hosts; the components themselves are in wheels of their own.

A module of its own: `dataclasses` takes longer to load than the rest of a job's class.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class TelemetryConfig:
    """How telemetry is collected: how long rows are kept, whether there is a dashboard and where, how often state is sampled."""

    retention_secs: int = 3600
    include_dashboard: bool = False
    dashboard_port: int = 8265
    snapshot_interval_secs: float = 30.0
    level: str = "normal"


@dataclass
class MeshAdminConfig:
    """Where the admin server listens; None is any free port."""

    admin_addr: str | None = None


TelemetryConfig.__module__ = MeshAdminConfig.__module__ = "monarch.job"
