"""Mounts on several hosts of one machine, and hosts that lose their service or end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from monarch.actor import HostMesh, this_host
from monarch.actor.testing import fault, local_hosts
from monarch.fs import FsError, Mount, mount
from monarch.remotemount import remotemount


def content(path: str) -> str:
    argv = [sys.executable, "-c", "import sys; print(open(sys.argv[1]).read())", path]
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=20).stdout.strip()


def service_processes() -> list[int]:
    """The file services of the jobs of this process, as `monarch ps` lists them."""
    argv = [sys.executable, "-c", "from monarch._core.cli import main; main()", "ps"]
    listed = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False).stdout
    jobs = listed.split("\njob ")
    own = next(job for job in jobs if f"{os.getpid()} on " in job.splitlines()[0])
    return [int(line.split()[0]) for line in own.splitlines() if "<service fs>" in line]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "file").write_text("first")
    return folder


def states(mounted: Mount) -> list[str]:
    return [host.state for host in mounted.status().get().hosts]


def test_hosts_of_a_machine_share_a_mount(source: Path, tmp_path: Path) -> None:
    target = str(tmp_path / "mounted")
    with local_hosts(3) as hosts:
        with mount(hosts, source, target, pyc="as-is") as mounted:
            assert content(f"{target}/file") == "first" and states(mounted) == ["live"] * 3
            (source / "file").write_text("second")
            assert mounted.refresh().get().changed == 1
            assert content(f"{target}/file") == "second"
            assert [host.rank for host in mounted.status().get().hosts] == [0, 1, 2]
        assert not os.path.ismount(target)


def test_hosts_of_a_machine_have_own_mount_points(source: Path, tmp_path: Path) -> None:
    places = [f"{tmp_path}/{key}/mounted" for key in ("hosts_0", "hosts_1")]
    with local_hosts(2) as hosts:
        with remotemount(hosts, str(source), f"{tmp_path}/$SUBDIR/mounted") as handler:
            assert [content(f"{place}/file") for place in places] == ["first"] * 2
            assert not Path(tmp_path, "$SUBDIR").exists()
            (source / "file").write_text("second")
            handler.refresh()
            assert [content(f"{place}/file") for place in places] == ["second"] * 2
        assert [os.path.ismount(place) for place in places] == [False] * 2
        # A single host has no coordinates.
        with mount(hosts.slice(hosts=1), source, f"{tmp_path}/of$SUBDIR"):
            assert content(f"{tmp_path}/of/file") == "second"


def test_mount_point_of_no_host_is_the_source(tmp_path: Path) -> None:
    source = tmp_path / "hosts_1"
    source.mkdir()
    with (
        local_hosts(2) as hosts,
        pytest.raises(ValueError, match=r"\$SUBDIR is the source itself on"),
        mount(hosts, source, f"{tmp_path}/$SUBDIR"),
    ):
        pass


def until_refreshed(mounted: Mount) -> None:
    """The first refresh may find that a host is lost, and then changes nothing."""
    for _ in range(5):
        try:
            mounted.refresh().get()
        except FsError as e:
            assert "the host was lost" in str(e)
        else:
            return
    raise AssertionError("five refreshes have found a lost host")


def test_killed_service_is_replaced_under_its_mount(source: Path, tmp_path: Path) -> None:
    target = str(tmp_path / "mounted")
    hosts: HostMesh = this_host()
    with mount(hosts, source, target, pyc="as-is") as mounted:
        [pid] = service_processes()
        os.kill(pid, signal.SIGKILL)
        assert content(f"{target}/file") == "first"
        (source / "file").write_text("second")
        until_refreshed(mounted)
        assert content(f"{target}/file") == "second" and states(mounted) == ["live"]


@pytest.mark.parametrize("is_asked", [False, True])
def test_all_bytes_come_though_the_service_is_killed(source: Path, tmp_path: Path, is_asked: bool) -> None:
    (source / "large").write_bytes(os.urandom(1 << 20))
    with mount(this_host(), source, str(tmp_path / "mounted"), pyc="as-is", fetch="demand") as mounted:
        [pid] = service_processes()
        # A stopped service does not answer: it dies during the call, or before it.
        os.kill(pid, signal.SIGSTOP if is_asked else signal.SIGKILL)
        done = mounted.complete()
        if is_asked:
            with pytest.raises(TimeoutError):
                done.get(timeout=0.1)
            os.kill(pid, signal.SIGKILL)
        done.get(timeout=25)
        [host] = mounted.status().get().hosts
        assert (host.state, host.bytes_held, host.last_error) == ("live", host.bytes_total, "")


def test_all_bytes_of_a_lost_host_fail(source: Path, tmp_path: Path) -> None:
    with local_hosts(2) as hosts, mount(hosts, source, str(tmp_path / "mounted"), pyc="as-is", fetch="demand") as mounted:
        fault(hosts.slice(hosts=1), "kill")
        with pytest.raises(FsError, match=r"\(rank 1\)"):
            mounted.complete().get(timeout=25)


def test_lost_host_does_not_block_the_others(source: Path, tmp_path: Path) -> None:
    target = str(tmp_path / "mounted")
    with local_hosts(2) as hosts, mount(hosts, source, target, pyc="as-is") as mounted:
        fault(hosts.slice(hosts=1), "kill")
        (source / "file").write_text("second")
        until_refreshed(mounted)
        assert content(f"{target}/file") == "second" and states(mounted) == ["live", "lost"]
