"""Views of jobs: arguments, saved features, layout, healed hosts, over a stand-in for `gather`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, cast

import pytest

import monarch.fs
from monarch.actor import HostMesh
from monarch.fs import MountBusyError
from monarch.fs._jobs.gather_mount import GatherMountFeature
from monarch.fs._jobs.kept_gather import KeptGather
from monarch.job import FeatureHosts, Keeper

events: list[tuple[Any, ...]] = []
views: list[StandInView] = []


class StandInView:
    def __init__(self, hosts: Any) -> None:
        self.hosts, self.is_mounted = hosts, True

    def close(self) -> None:
        self.is_mounted = False
        events.append(("close", self.hosts))


class StandInKeeper:
    def __init__(self) -> None:
        self.served: list[tuple[str, str, Mapping[str, Any]]] = []

    def serve(self, service: str, key: str, config: Mapping[str, Any]) -> dict[str, Any]:
        self.served.append((service, key, json.loads(json.dumps(config))))
        return {}


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    events.clear()
    views.clear()

    def gather(hosts: Any, remote: str, local: str) -> StandInView:
        events.append(("gather", hosts, remote, local))
        if hosts == "bad":
            raise MountBusyError("is mounted", path=local)
        views.append(StandInView(hosts))
        return views[-1]

    monkeypatch.setattr(monarch.fs, "gather", gather, raising=False)


def meshes(**named: str) -> Mapping[str, HostMesh]:
    return cast("Mapping[str, HostMesh]", named)


def config(*names: str) -> dict[str, Any]:
    return {"remote": "/logs", "local": "/here", "meshes": list(names) or None}


def test_layout_is_that_of_the_job() -> None:
    assert KeptGather().start(meshes(a="a1"), config()) == {"local": {"a": "/here"}}
    assert KeptGather().start(meshes(a="a1", b="b1"), config()) == {"local": {"a": "/here/a", "b": "/here/b"}}
    # One mesh of several also has its directory.
    assert KeptGather().start(meshes(a="a1", b="b1"), config("b")) == {"local": {"b": "/here/b"}}
    assert events == [("gather", found, "/logs", "/here") for found in ("a1", {"a": "a1", "b": "b1"}, {"b": "b1"})]
    with pytest.raises(ValueError, match="no mesh 'c' in this job, there is: a"):
        KeptGather().start(meshes(a="a1"), config("c"))


def test_kept_view_stays_while_hosts_and_mount_last() -> None:
    kept = KeptGather()
    assert not kept.busy()
    kept.start(meshes(a="a1", b="b1"), config())
    kept.start(meshes(a="a1", b="b1"), config())
    assert len(events) == 1 and kept.busy() and kept.status() == {"shown": ["a", "b"], "mounted": True}
    events.clear()
    kept.start(meshes(a="a1", b="healed"), config())
    assert events == [("close", {"a": "a1", "b": "b1"}), ("gather", {"a": "a1", "b": "healed"}, "/logs", "/here")]
    events.clear()
    views[-1].is_mounted = False
    # An hour later the keeper may end.
    assert not kept.busy() and not kept.status()["mounted"]
    kept.start(meshes(a="a1", b="healed"), config())
    assert [name for name, *_ in events] == ["close", "gather"] and kept.busy()
    events.clear()
    kept.stop()
    kept.stop()
    assert events == [("close", {"a": "a1", "b": "healed"})] and not kept.busy()


def test_failed_view_leaves_nothing() -> None:
    kept = KeptGather()
    with pytest.raises(MountBusyError, match="is mounted"):
        kept.start(meshes(a="bad"), config())
    assert not kept.busy() and kept.status() == {"shown": [], "mounted": False}


@pytest.mark.parametrize("remote", ["logs", "$SUBDIR/logs", "/a\0"])
def test_wrong_remote_path_is_named(remote: str) -> None:
    with pytest.raises(ValueError, match="null character" if "\0" in remote else "logs: the remote path"):
        GatherMountFeature(remote, "here")


def test_no_mesh_and_no_mount_point_are_refused() -> None:
    with pytest.raises(ValueError, match="with no mesh"):
        GatherMountFeature("/logs", "here", [])
    with pytest.raises(ValueError, match="'' is no path"):
        GatherMountFeature("/logs", "")


def test_saved_feature_is_loaded_as_it_was() -> None:
    keeper = StandInKeeper()
    feature = GatherMountFeature("/logs/$SUBDIR", "here", ["a"])
    assert "apply_id" not in feature.dump()
    hosts = FeatureHosts("job", "0" * 32, meshes(a="a1", b="b1"), cast("Keeper", keeper))
    assert feature.start(hosts).meshes == {}
    local = os.path.abspath("here")
    assert keeper.served == [("gather", local, {"remote": "/logs/$SUBDIR", "local": local, "meshes": ["a"]})]
    assert GatherMountFeature.load(json.loads(json.dumps(feature.dump()))).dump() == feature.dump()
    # Another process finds the keeper of the mount.
    assert feature.dump()["apply_id"] == "0" * 32
    with pytest.raises(ValueError, match="no mesh 'c' in this job, there is: a, b"):
        GatherMountFeature("/logs", "here", ["c"]).start(hosts)
    with pytest.raises(ValueError, match="needs the keeper"):
        feature.start(hosts._replace(keeper=None))
