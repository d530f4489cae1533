"""Directories of mount points that several hosts have: the host that made one does not take it away from the others."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest
from fs_workers import Agent, running

from monarch.fs import mount
from monarch.fs._daemon import shared_directory
from monarch.fs._daemon.mount_record import remove_made
from monarch.fs._daemon.shared_directory import used_elsewhere

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make mount namespaces")


@contextlib.contextmanager
def mounted_elsewhere(folder: Path) -> Generator[int]:
    """A process in a mount namespace of its own, in which something is mounted at the folder; its process id."""
    script = 'mount -t tmpfs none "$0" && echo content >"$0/file" && echo mounted && exec cat'
    argv = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, str(folder)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "mounted\n"
        yield process.pid


@ROOT
def test_directory_mounted_by_another_namespace_stays(tmp_path: Path) -> None:
    made = [tmp_path / "a", tmp_path / "a b"]
    made += [made[1] / "mounted"]
    made[0].mkdir()
    made[2].mkdir(parents=True)
    names = [str(folder) for folder in made]
    with mounted_elsewhere(made[2]) as process:
        assert used_elsewhere(names) == {names[2]}
        remove_made(names)
        assert [folder.exists() for folder in made] == [False, True, True]
        assert Path(f"/proc/{process}/root{made[2]}/file").read_text() == "content\n"
    remove_made(names)
    assert not os.listdir(tmp_path)


@ROOT
def test_directory_with_a_mount_over_it_stays(tmp_path: Path) -> None:
    target = tmp_path / "mounted"
    target.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", str(target)], check=True)
    try:
        remove_made([str(target)])
        assert os.path.ismount(target)
    finally:
        subprocess.run(["umount", str(target)], check=True)
    remove_made([str(target)])
    assert not target.exists()


KINDS = {"nfs4": True, "lustre": True, "fuse.sshfs": True, "fuse.fuse-overlayfs": False, "ext4": False}


@pytest.mark.parametrize(("kind", "is_kept"), KINDS.items())
def test_directory_of_a_shared_file_system_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, is_kept: bool) -> None:
    rows = shared_directory._rows

    def with_kind(process: str) -> list[shared_directory._Row]:
        return [row._replace(kind=kind) for row in rows(process)]

    monkeypatch.setattr(shared_directory, "_rows", with_kind)
    made = tmp_path / "mounted"
    made.mkdir()
    remove_made([str(made)])
    assert made.exists() == is_kept


@ROOT
def test_end_of_a_mount_keeps_the_other_hosts(tmp_path: Path) -> None:
    source, target = tmp_path / "source", str(tmp_path / "made" / "mounted")
    source.mkdir()
    (source / "file").write_text("content")
    agent = Agent(("unshare", "--mount", "--propagation", "private"))
    with running([agent, agent]) as (hosts, workers):
        first = mount(hosts.slice(hosts=0), source, target)
        first.ready.get(timeout=25)
        with mount(hosts.slice(hosts=1), source, target) as second:
            first.close().get(timeout=25)
            # The content at that path on the other host, as seen by a process there.
            argv = ["nsenter", f"--mount=/proc/{workers[1].pid}/ns/mnt", "cat", f"{target}/file"]
            shown = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=20)
            assert (shown.stdout, shown.stderr) == ("content", "")
            [host] = second.status().get(timeout=25).hosts
            assert host.state == "live"
        assert os.listdir(target) == []
