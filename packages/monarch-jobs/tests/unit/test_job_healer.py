"""How a run asks a job for its lost hosts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from monarch.job import HealReport, HostStatus
from monarch.job._job.healer import healer


class FakeJob:
    """A job with the meshes `a` and `b`, whose lost hosts are those of some meshes."""

    def __init__(self, *missing: str) -> None:
        self.missing = [HostStatus(mesh, 0, "", "lost", "", "") for mesh in missing]
        self.calls: list[Any] = []

    def heal(self, *, timeout: float | None = None) -> HealReport:
        self.calls.append(timeout)
        return HealReport([], [], self.missing)

    def state(self, cached_path: str | None = "") -> dict[str, str]:
        self.calls.append(cached_path)
        return {"a": "mesh a", "b": "mesh b"}


@pytest.mark.parametrize(("missing", "found"), [((), "mesh a"), (("b",), "mesh a"), (("a",), None), (("a", "b"), None)])
def test_hosts_of_the_first_mesh_count(missing: tuple[str, ...], found: str | None) -> None:
    job: Any = FakeJob(*missing)

    async def asked() -> Any:
        return await healer(job)(7.0)

    assert asyncio.run(asked()) == found
    assert job.calls == [7.0, None]
