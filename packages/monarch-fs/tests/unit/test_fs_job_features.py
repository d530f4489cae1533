"""What jobs carry of the file system: arguments, saved features, kept mounts, over stand-ins for `mount`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

import monarch.fs
from monarch.actor import HostMesh, this_host
from monarch.fs import FsError, MountBusyError
from monarch.fs._jobs.keeper_failure import raised_here
from monarch.fs._jobs.kept_mount import KeptMount
from monarch.fs._jobs.remote_mount import RemoteMountFeature
from monarch.job import FeatureHosts, Keeper, KeeperError

events: list[tuple[Any, ...]] = []


class Done:
    def __init__(self, value: Any = None) -> None:
        self.value = value

    def get(self, timeout: float | None = None) -> Any:
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


class Report(NamedTuple):
    changed: int
    bytes_sent: int


class StandInMount:
    """Records what is done with a mount; the hosts `"bad"` cannot mount."""

    def __init__(self, hosts: str, target: str) -> None:
        self.hosts, self.target, self.generation = hosts, target, "0" * 64
        self.ready = Done(OSError("no fuse") if hosts == "bad" else None)

    def refresh(self) -> Done:
        events.append(("refresh", self.hosts))
        return Done(Report(3, 70))

    def close(self) -> Done:
        events.append(("close", self.hosts))
        return Done()


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    events.clear()

    def mount(hosts: str, source: str, target: str | None = None, *, exclude: Any = (), fetch: str = "hot") -> StandInMount:
        events.append(("mount", hosts, source, target, list(exclude)))
        return StandInMount(hosts, target or source)

    monkeypatch.setattr(monarch.fs, "mount", mount, raising=False)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    found = tmp_path / "project"
    (found / ".venv/bin").mkdir(parents=True)
    (found / ".venv/bin/python").symlink_to(sys.executable)
    return found


def meshes(**named: str) -> Mapping[str, HostMesh]:
    return cast("Mapping[str, HostMesh]", named)


class StandInKeeper:
    def __init__(self) -> None:
        self.served: list[tuple[str, str, Mapping[str, Any]]] = []

    def serve(self, service: str, key: str, config: Mapping[str, Any]) -> dict[str, Any]:
        self.served.append((service, key, json.loads(json.dumps(config))))
        return {}


def test_missing_interpreter_is_named(source: Path, tmp_path: Path) -> None:
    (source / "plain").write_text("")
    (source / "gone").symlink_to("nothing")
    for python in ("bin/python", "plain", "gone", "../project/.venv/bin/python", "/usr/bin/env", ""):
        with pytest.raises(ValueError, match="python_exe"):
            RemoteMountFeature(source, "/m", python_exe=python)
    (tmp_path / "data").mkdir()
    with pytest.raises(ValueError, match=r"python_exe .venv/bin/python is no executable below .*data.*python_exe=None"):
        RemoteMountFeature(tmp_path / "data")
    RemoteMountFeature(tmp_path / "data", python_exe=None)
    with pytest.raises(ValueError, match=r"the mount point /m/\$SUBDIR differs by host, .*: pass python_exe=None"):
        RemoteMountFeature(source, "/m/$SUBDIR", python_exe="bin/python")
    RemoteMountFeature(source, "/m/$SUBDIR", python_exe=None)


def test_bad_arguments(source: Path) -> None:
    with pytest.raises(ValueError, match="mount point m is not absolute"):
        RemoteMountFeature(source, "m")
    with pytest.raises(ValueError, match="no mesh"):
        RemoteMountFeature(source, meshes=[])
    with pytest.raises(TypeError, match="no argument 'excluded'.*exclude, fetch"):
        RemoteMountFeature(source, excluded=["x"])
    with pytest.raises(FileNotFoundError, match="gone"):
        RemoteMountFeature(source / "gone")
    with pytest.raises(NotADirectoryError, match="python"):
        RemoteMountFeature(source / ".venv/bin/python")


def test_saved_feature_is_loaded_without_its_source(source: Path) -> None:
    feature = RemoteMountFeature(source, "/m", ["a"], exclude=("*.o",))
    saved = json.loads(json.dumps(feature.dump()))
    source.rename(source.with_name("moved"))
    loaded = RemoteMountFeature.load(saved)
    assert loaded.dump() == feature.dump() == saved
    assert saved == {
        "source": str(source),
        "target": "/m",
        "meshes": ["a"],
        "python_exe": ".venv/bin/python",
        "options": {"exclude": ["*.o"]},
    }


def test_meshes_of_the_state_start_the_mounted_interpreter(source: Path) -> None:
    inside = source / ".venv/bin/python"
    inside.unlink()
    inside.write_text("#!/bin/sh\n")
    inside.chmod(0o755)
    keeper = StandInKeeper()
    feature = RemoteMountFeature(source, "/m", ["a"], fetch="all")
    hosts = FeatureHosts("job", "0" * 32, {"a": this_host(), "b": this_host()}, cast("Keeper", keeper))
    offer = feature.start(hosts)
    assert list(offer.meshes) == ["a"]
    assert offer.meshes["a"].__core__.executable == "/m/.venv/bin/python"
    assert keeper.served == [("mount", "/m", {"source": str(source), "target": "/m", "meshes": ["a"], "options": {"fetch": "all"}})]
    # Another process finds the keeper of the mount.
    assert feature.dump()["apply_id"] == "0" * 32
    with pytest.raises(ValueError, match="no mesh 'c' in this job, there is: a, b"):
        RemoteMountFeature(source, "/m", ["c"]).start(hosts)
    assert RemoteMountFeature(source, "/m", python_exe=None).start(hosts).meshes == {}


def config(**options: Any) -> dict[str, Any]:
    return {"source": "/s", "target": "/m", "meshes": None, "options": options}


def test_kept_mount_refreshes_and_replaces_healed_hosts() -> None:
    kept = KeptMount()
    assert not kept.busy()
    result = kept.start(meshes(a="a1", b="b1"), config(exclude=["x"]))
    assert result == {"target": "/m", "generation": {"a": "0" * 64, "b": "0" * 64}, "changed": 0, "bytes_sent": 0}
    assert kept.busy() and kept.status() == {"generation": result["generation"], "complete": False}
    assert events == [("mount", "a1", "/s", "/m", ["x"]), ("mount", "b1", "/s", "/m", ["x"])]
    events.clear()
    again = kept.start(meshes(a="a1", b="b2"), config(exclude=["x"]))
    assert (again["changed"], again["bytes_sent"]) == (3, 70)
    # The new hosts are mounted before the old mount is closed.
    assert events == [("mount", "b2", "/s", "/m", ["x"]), ("close", "b1"), ("refresh", "a1")]
    events.clear()
    kept.stop()
    assert sorted(events) == [("close", "a1"), ("close", "b2")] and not kept.busy()


def test_failed_mount_leaves_no_half_state() -> None:
    kept = KeptMount()
    with pytest.raises(OSError, match="no fuse"):
        kept.start(meshes(a="a1", b="bad"), config())
    assert events[2:] == [("close", "a1"), ("close", "bad")] and not kept.busy()
    kept.start(meshes(a="a1"), config())
    events.clear()
    # The existing mounts remain.
    with pytest.raises(OSError, match="no fuse"):
        kept.start(meshes(a="a1", b="bad"), config())
    assert ("close", "a1") not in events and kept.busy()


def test_keeper_errors_become_errors_of_this_wheel() -> None:
    with pytest.raises(MountBusyError, match="^/m on h: is mounted$") as caught, raised_here():
        raise KeeperError("/m on h: is mounted", code="fs_busy", raised="MountBusyError")
    assert caught.value.code == "fs_busy" and isinstance(caught.value, FsError)
    with pytest.raises(NotADirectoryError, match="no directory"), raised_here():
        raise KeeperError("no directory", raised="NotADirectoryError")
    with pytest.raises(KeeperError, match="something"), raised_here():
        raise KeeperError("something", raised="Exception")
