"""The services that a keeper records, and that the next one starts again."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from monarch.job import JobError, KeptService
from monarch.job._client import kept_record
from monarch.job._keeper.kept_services import KeptServices


class Counter(KeptService):
    """Fails at the start where its configuration has a reason."""

    broken = ""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def start(self, hosts: Mapping[str, Any], config: Mapping[str, Any]) -> Mapping[str, Any]:
        if Counter.broken:
            raise ValueError(Counter.broken)
        self.calls.append("start")
        return {}

    def stop(self) -> None:
        self.calls.append("stop")

    def status(self) -> Mapping[str, Any]:
        return {"calls": self.calls}

    def busy(self) -> bool:
        return False


def services(folder: Path) -> KeptServices:
    return KeptServices(lambda name: Counter(), str(folder))


def restored(folder: Path) -> KeptServices:
    found = services(folder)
    found.restore(dict)
    for thread in threading.enumerate():
        if thread.name.startswith("monarch-keeper-restore"):
            thread.join()
    return found


def test_services_that_were_not_stopped_are_started_again(tmp_path: Path) -> None:
    first = services(tmp_path)
    for key in ("a", "b", "c"):
        first.serve("counter", key, {"of": key}, dict)
    first.stop("counter", "b")
    first.serve("counter", "c", {"of": "another"}, dict)
    second = restored(tmp_path)
    assert {one["key"]: (one["state"], one["config"], one["detail"]) for one in second.status()} == {
        "a": ("running", {"of": "a"}, {"calls": ["start"]}),
        "c": ("running", {"of": "another"}, {"calls": ["start"]}),
    }
    # The call is a refresh of the running service.
    second.serve("counter", "a", {"of": "a"}, dict)
    assert second.status()[0]["detail"] == {"calls": ["start", "start"]}


def test_end_of_a_keeper_takes_nothing_out(tmp_path: Path) -> None:
    first = services(tmp_path)
    first.serve("counter", "a", {}, dict)
    assert first.stop_all(5.0) == []
    assert list(kept_record.load(str(tmp_path))) == [("counter", "a")]


def test_service_that_cannot_be_started_again_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    services(tmp_path).serve("counter", "a", {}, dict)
    monkeypatch.setattr(Counter, "broken", "the source is gone")
    found = restored(tmp_path)
    [status] = found.status()
    assert (status["state"], status["detail"]) == ("failed", {"error": "ValueError: the source is gone"})
    assert not found.is_busy()
    # The next keeper tries again; a request to stop ends that.
    [again] = restored(tmp_path).status()
    assert again["state"] == "failed"
    assert found.stop("counter", "a") is True and found.stop("counter", "a") is False
    assert restored(tmp_path).status() == []


def test_failed_service_is_served_by_the_next_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    services(tmp_path).serve("counter", "a", {}, dict)
    with monkeypatch.context() as patch:
        patch.setattr(Counter, "broken", "no host")
        found = restored(tmp_path)
    found.serve("counter", "a", {}, dict)
    assert [one["state"] for one in found.status()] == ["running"]


def test_damaged_record_is_none(tmp_path: Path) -> None:
    for text in ("", "{", "[1]", '[{"service": "a"}]', '{"a": 1}'):
        (tmp_path / kept_record.RECORD).write_text(text)
        assert kept_record.load(str(tmp_path)) == {} and restored(tmp_path).status() == []


def test_client_takes_a_service_out(tmp_path: Path) -> None:
    services(tmp_path).serve("counter", "a", {}, dict)
    kept_record.remove(str(tmp_path), "counter", "b")
    assert list(kept_record.load(str(tmp_path))) == [("counter", "a")]
    kept_record.remove(str(tmp_path), "counter", "a")
    assert restored(tmp_path).status() == []


def renewed(found: KeptServices, hosts: Mapping[str, Any]) -> list[Any]:
    found.renew(lambda: hosts)
    for thread in threading.enumerate():
        if thread.name.startswith("monarch-keeper-renew"):
            thread.join()
    return [one["detail"].get("calls", one["state"]) for one in found.status()]


def test_services_start_again_on_other_hosts_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = services(tmp_path)
    before, now = {"a": object()}, {"a": object()}
    found.serve("counter", "a", {}, lambda: before)
    assert renewed(found, dict(before)) == [["start"]]
    monkeypatch.setattr(Counter, "broken", "the host is gone")
    assert renewed(found, now) == [["start"]]
    # A service that could not be started is tried again.
    monkeypatch.setattr(Counter, "broken", "")
    assert renewed(found, now) == [["start", "start"]]
    assert renewed(found, now) == [["start", "start"]]
    monkeypatch.setattr(Counter, "broken", "the source is gone")
    second = restored(tmp_path)
    monkeypatch.setattr(Counter, "broken", "")
    assert renewed(second, now) == [["start"]]


def test_only_services_of_another_keeper_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    def left(self: Counter, hosts: Mapping[str, Any], config: Mapping[str, Any], seconds: float) -> str:
        waits.append(seconds)
        return config.get("left", "")

    monkeypatch.setattr(Counter, "left", left)
    services(tmp_path).serve("counter", "a", {}, dict)
    found = restored(tmp_path)
    found.serve("counter", "b", {"left": "it is on"}, dict)
    for key in ("a", "b"):
        assert found.config("counter", key) is not None
    assert found.config("counter", "c") is None
    found.check_end("counter", "a", {}, dict, 20.0)
    with pytest.raises(JobError, match="^it is on$"):
        found.check_end("counter", "b", {"left": "it is on"}, dict, 20.0)
    assert waits == [20.0, 0.0]


class Bridge(Counter):
    needs_hosts = False


def test_bridge_service_starts_without_hosts(tmp_path: Path) -> None:
    def unreachable() -> Mapping[str, Any]:
        raise AssertionError("the hosts are looked at")

    first = KeptServices(lambda name: Bridge(), str(tmp_path))
    assert not first.needs_hosts("bridge")
    assert first.serve("bridge", "a", {}, unreachable) == first.serve("bridge", "a", {}, unreachable) == {}
    first.renew(unreachable)
    first.check_end("bridge", "a", {}, unreachable, 0.0)
    second = KeptServices(lambda name: Bridge(), str(tmp_path))
    second.restore(unreachable)
    assert second.serve("bridge", "a", {}, unreachable) == {}
    assert [(one["state"], one["detail"]["calls"]) for one in second.status()] == [("running", ["start", "start"])]
