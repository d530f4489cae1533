"""Features of jobs: found by name, saved with the job, started by `state()`, stopped by `kill()`."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from file_job import FileJob, allocations

from monarch import extension
from monarch.actor import this_host
from monarch.extension import BrokenEntry, LoadedEntry
from monarch.job import (
    FeatureHosts,
    JobEndedError,
    JobError,
    JobFeature,
    JobState,
    JobTrait,
    Offer,
    TelemetryFeature,
    add_feature,
    job_load,
)

events: list[tuple[str, Any]] = []
# The names of the meshes of each start.
started: list[list[str]] = []


class Recorded(JobFeature):
    def __init__(self, **arguments: Any) -> None:
        self.arguments = {name: value for name, value in arguments.items() if value is not None}

    def dump(self) -> dict[str, Any]:
        return self.arguments

    @classmethod
    def load(cls, saved: dict[str, Any]) -> Recorded:
        return cls(**saved)

    def start(self, hosts: FeatureHosts) -> Offer:
        events.append(("start", self.arguments))
        started.append(list(hosts.meshes))
        return Offer(**self.arguments.get("offer", {}))

    def stop(self) -> None:
        events.append(("stop", self.arguments))


class Mount(Recorded):
    several = True


class Watch(Recorded, TelemetryFeature):
    best_effort = True

    def start(self, hosts: FeatureHosts) -> Offer:
        super().start(hosts)
        if self.arguments.get("level") == "bad":
            raise OSError("no port is free")
        return Offer({"telemetry_url": "http://here"})

    def profile(self, on_trace_ready: Callable[..., Any] | None) -> Any:
        return ("profile", on_trace_ready)

    def query_client(self) -> Any:
        return "client"


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    events.clear()
    started.clear()
    found: dict[str, Any] = {"telemetry": Watch, "remote_mount": Mount, "gather_mount": Mount, "plain": Recorded, "odd": int}

    def load(group: str, name: str) -> LoadedEntry | BrokenEntry | None:
        assert group == "monarch.job_feature"
        value = found.get(name)
        return value if value is None or isinstance(value, BrokenEntry) else LoadedEntry(group, name, "wheel 1.0", "wheel:x", value)

    monkeypatch.setattr(extension, "load_entry", load)
    monkeypatch.setattr(extension, "entry_names", lambda group: sorted(found))
    monkeypatch.setattr("monarch.job._job.features._warned", set[str]())
    return found


def test_methods_of_a_job_find_the_wheel() -> None:
    job = FileJob("alloc")
    assert job.enable_telemetry(level="normal") is job
    job.remote_mount("there", meshes=["hosts"])
    job.remote_mount("elsewhere")
    job.remote_mount("elsewhere")
    job.gather_mount("logs", "here")
    assert events == []
    assert job.state(None).telemetry_url == "http://here"
    # Mounts before telemetry, each of them once.
    assert [arguments.get("source") or list(arguments)[0] for _, arguments in events] == [
        "there", "elsewhere", "remote_mount_point", "level"
    ]  # fmt: skip
    assert (job.telemetry_query_client(), job.profile()) == ("client", ("profile", None))
    job.kill()
    assert [what for what, _ in events[4:]] == ["stop"] * 4
    with pytest.raises(JobEndedError, match="has no allocation to ask\n.*killed") as raised:
        job.telemetry_query_client()
    assert raised.value.state == "none"


def test_telemetry_of_an_ended_job_is_an_error() -> None:
    job = FileJob("alloc").enable_telemetry(level="normal")
    job.state(None)
    job.allocation.unlink()
    with pytest.raises(JobEndedError, match="ended: its file is gone|its file is gone"):
        job.telemetry_query_client()


class OwnMeshJob(FileJob):
    def _state(self) -> JobState:
        meshes: dict[str, Any] = {self.mesh: this_host(), "own": object()}
        return JobState(meshes)


def test_features_get_the_meshes_of_hosts() -> None:
    """A mesh of the job's own kind takes no feature from the others."""
    job = OwnMeshJob("alloc").enable_telemetry(level="normal")
    assert job.state(None).telemetry_url == "http://here"
    assert events == [("start", {"level": "normal"})] and started == [["hosts"]]
    job.kill()


def test_disabled_telemetry_is_an_error_of_its_own() -> None:
    with pytest.raises(JobError, match=r"call enable_telemetry\(\) before state\(\)"):
        FileJob("alloc").profile()


def test_failed_telemetry_is_one_warning() -> None:
    job = FileJob("alloc").enable_telemetry(level="bad")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        state = job.state(None)
    assert [str(warning.message) for warning in caught] == [f"{job._title} runs without telemetry: OSError: no port is free"]
    assert (state.hosts, state.telemetry_url) == (this_host(), None)
    job.kill()


def test_broken_telemetry_wheel_is_one_warning(installed: dict[str, Any]) -> None:
    installed["telemetry"] = BrokenEntry("monarch.job_feature", "telemetry", "wheel 1.0", "gone:x", ModuleNotFoundError("no gone"))
    job = FileJob("alloc")
    with pytest.warns(UserWarning, match=r"enable_telemetry has no effect: .*\n.*wheel 1.0: entry point 'telemetry'.*no gone"):
        job.enable_telemetry()


def test_entry_point_of_another_kind_is_named() -> None:
    with pytest.raises(JobError, match="the job feature 'odd' of wheel 1.0 is no subclass of monarch.job.JobFeature"):
        add_feature(FileJob("alloc"), "odd")


@pytest.mark.parametrize(
    ("offer", "words"),
    [
        ({"attributes": {"hosts": 1}}, "the attribute 'hosts' is taken"),
        ({"attributes": {"_meshes": 1}}, "the attribute '_meshes' is taken"),
        ({"meshes": {"others": 1}}, "there is no mesh 'others'"),
    ],
)
def test_invalid_offer_of_a_feature_is_named(offer: dict[str, Any], words: str) -> None:
    job = FileJob("alloc")
    add_feature(job, "plain", offer=offer)
    with pytest.raises(JobError, match=f"'plain' offers what the job cannot have: {words}"):
        job.state(None)
    job.kill()


def test_feature_replaces_a_mesh() -> None:
    job = FileJob("alloc")
    other = this_host().with_python_executable("/opt/python")
    add_feature(job, "plain", offer={"meshes": {"hosts": other}})
    assert job.state(None).hosts is other
    job.kill()


def test_next_script_keeps_unchanged_features_only() -> None:
    first = FileJob("alloc")
    add_feature(first, "plain", number=1)
    first.remote_mount("kept")
    first.remote_mount("dropped")
    first.state("s.json")
    del events[:]
    second = FileJob("alloc")
    second.remote_mount("kept")
    second.remote_mount("new")
    second.state("s.json")
    assert second.apply_id == first.apply_id
    mount = {"python_exe": ".venv/bin/python"}
    assert events == [
        ("stop", {"number": 1}),
        ("stop", {"source": "dropped", **mount}),
        ("start", {"source": "kept", **mount}),
        ("start", {"source": "new", **mount}),
    ]
    loaded = job_load("s.json")
    assert [one["saved"]["source"] for one in json.loads(loaded.dumps())["features"]] == ["kept", "new"]
    del events[:]
    loaded.kill()
    assert [(what, arguments["source"]) for what, arguments in events] == [("stop", "new"), ("stop", "kept")]


def test_job_ends_without_the_wheel_of_its_feature(installed: dict[str, Any]) -> None:
    first = FileJob("alloc")
    add_feature(first, "plain", number=1)
    first.state("s.json")
    del installed["plain"]
    loaded: JobTrait = job_load("s.json")
    # The feature is saved unchanged.
    assert json.loads(loaded.dumps())["features"] == [{"name": "plain", "configured": {"number": 1}, "saved": {"number": 1}}]
    with pytest.raises(JobError, match="could not stop plain: FeatureMissingError: no job feature 'plain' is installed"):
        loaded.kill()
    assert allocations("alloc") == [] and not loaded.active
