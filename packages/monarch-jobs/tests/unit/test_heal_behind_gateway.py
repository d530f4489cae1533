"""Healing by a process that has lost its gateway: what the scheduler has as well is not started again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from monarch.job._job.allocation import Allocation
from monarch.job._job.heal import HealSteps, heal
from monarch.job._job.launcher import Host, HostStatus, JobStatus, Plan
from monarch.job.kubernetes import ImageSpec, KubernetesJob
from monarch.job.kubernetes.job import GatewayPod


class _Launcher:
    kind = "memory"

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    def plan(self) -> Plan:
        raise NotImplementedError

    def submit(self, plan: Plan, secret: bytes) -> dict[str, Any]:
        raise NotImplementedError

    def poll(self, ids: dict[str, Any]) -> JobStatus:
        return JobStatus("running", "", [])

    def addresses(self, ids: dict[str, Any]) -> dict[str, list[str | None]]:
        return {"a": ["tcp://h:1", "tcp://h:2"]}

    def relaunch(self, ids: dict[str, Any], lost: list[tuple[str, int]]) -> list[tuple[str, int]]:
        self.asked += lost
        return lost

    def cancel(self, ids: dict[str, Any]) -> None:
        raise NotImplementedError


class _Job:
    apply_id = None
    active = True
    _title = "memory job"

    def __init__(self, *unreached: int) -> None:
        self.unreached_ = frozenset(Host("a", rank) for rank in unreached)
        self.launcher = _Launcher()
        self.replaced: list[Host] = []

    def allocation(self) -> Allocation:
        return Allocation("memory job", self.launcher, {}, {"a": 2}, [])

    def look(self, allocation: Allocation) -> JobStatus:
        return JobStatus("running", "", [HostStatus("a", rank, f"h{rank}", "lost", None, "the gateway is lost") for rank in range(2)])

    def replace(self, hosts: Iterable[Host]) -> None:
        self.replaced += hosts


@pytest.mark.parametrize(("unreached", "asked"), [((), [0, 1]), ((1,), [0]), ((0, 1), [])])
def test_hosts_behind_a_lost_gateway_are_attached_again(unreached: tuple[int, ...], asked: list[int]) -> None:
    job = _Job(*unreached)
    steps = HealSteps(lambda: False, job.allocation, job.look, job.replace, lambda: None, lambda: 5.0)
    report = heal(job, steps, 20.0)
    assert [rank for _, rank in job.launcher.asked] == asked
    # The next `state()` has new handles of all hosts.
    assert sorted(rank for _, rank in job.replaced) == [0, 1] and not report.missing


def test_gateway_pod_stays_the_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    from monarch import actor
    from monarch.extension import mesh

    job = KubernetesJob("research")
    job.add_mesh("trainers", 3, image_spec=ImageSpec("registry.example.com/monarch:1"))
    pods = [GatewayPod("trainers", name, ("10.0.0.1", 26600)) for name in "abc"]
    forwarded: list[str] = []
    dead: set[str] = set()

    def attach(address: str, **trust: Any) -> None:
        if forwarded[-1] in dead:
            raise actor.AttachError("no answer", {})

    def forward(pod: GatewayPod) -> int:
        forwarded.append(pod.pod)
        return 1

    monkeypatch.setattr(mesh, "join_gateway", attach)
    monkeypatch.setattr(job, "_candidates", lambda: list(pods))
    monkeypatch.setattr(job, "_forward", forward)
    monkeypatch.setattr(job, "_trust", lambda mesh: {})
    ids: dict[str, Any] = {"route": "forward", "gateway": ""}
    job._through_pod(ids)
    dead.add("a")
    job._through_pod(ids)
    # The gateway is that of a job which is elsewhere by now, and does not answer any more.
    assert (forwarded, ids["gateway"]) == (["a", "a", "b"], "b")
    job._through_pod(ids)
    assert forwarded[3:] == ["b"]
    dead.update("bc")
    with pytest.raises(actor.AttachError):
        job._through_pod(ids)
    assert forwarded[4:] == ["b", "a", "c"]
