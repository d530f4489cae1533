"""Mounts of the daemon: shared, counted, switched, refused and removed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from fs_daemon_source import LIMIT, Source, content, output

from monarch.fs import FsError, MountBusyError
from monarch.fs._daemon.daemon_client import Unmounted
from monarch.fs._kernel import connection
from monarch.fs._kernel.preflight import problems
from monarch.fs._tree.difference import difference
from monarch.fs._tree.operations import MountOptions

pytestmark = pytest.mark.skipif(bool(problems()), reason=f"cannot mount: {problems()}")


def test_mount_is_read_and_removed_with_its_directories(source: Source) -> None:
    client = source.client()
    client.mount(source.request(source.table({b"a": b"one", b"b": b"two"})))
    assert output("print(sorted(os.listdir(t)), open(t + '/a').read())", source.target) == "['a', 'b'] one"
    status = client.status(source.target)
    assert (status.faults, status.users, status.last_error) == (1, 1, "")
    assert client.unmount(source.target) == Unmounted(False, [])
    assert not source.mounted() and not os.path.exists(os.path.dirname(source.target))
    with pytest.raises(FsError, match="not mounted by this client"):
        client.status(source.target)


def test_two_clients_share_a_mount(source: Source) -> None:
    first, second = source.client(), source.client()
    table = source.table({b"a": b"one"})
    first.mount(source.request(table))
    second.mount(source.request(table))
    assert first.status(source.target).server == second.status(source.target).server and second.status(source.target).users == 2
    assert first.unmount(source.target) == Unmounted(False, [])
    assert content(source.target, "a") == "one" and second.status(source.target).users == 1
    second.close()
    assert not source.mounted()


def test_second_client_moves_the_generation(source: Source) -> None:
    first, second = source.client(), source.client()
    old, new, last = (source.table({b"a": text}) for text in (b"old", b"new", b"last"))
    first.mount(source.request(old))
    second.mount(source.request(new))
    assert content(source.target, "a") == "new"
    # The difference of the first client has a base that is no longer shown.
    first.stage(source.target, difference(old, last))
    assert content(source.target, "a") == "new"
    first.commit(source.target, last.generation)
    assert content(source.target, "a") == "last"


def test_nothing_changes_before_the_commit(source: Source) -> None:
    client = source.client()
    old, new = source.table({b"a": b"old", b"gone": b"x"}), source.table({b"a": b"new", b"more": b"y"})
    client.mount(source.request(old))
    assert content(source.target, "a") == "old" and "No such file" in content(source.target, "more")
    with pytest.raises(FsError, match="is not staged"):
        client.commit(source.target, new.generation)
    client.stage(source.target, difference(old, new))
    client.abort(source.target, new.generation)
    with pytest.raises(FsError, match="is not staged"):
        client.commit(source.target, new.generation)
    client.stage(source.target, difference(old, new))
    assert content(source.target, "a") == "old"
    client.commit(source.target, new.generation)
    client.commit(source.target, new.generation)
    assert output("print(sorted(os.listdir(t)), open(t + '/a').read(), open(t + '/more').read())", source.target) == "['a', 'more'] new y"
    with pytest.raises(ValueError, match="."):
        client.stage(source.target, b"no difference")
    assert content(source.target, "a") == "new"


def test_failed_chunks_give_an_error_with_a_reason(source: Source) -> None:
    client = source.client()
    client.mount(source.request(source.table({b"a": b"one", b"b": b"two"})))
    source.contents.clear()
    assert "Input/output error" in content(source.target, "a")
    assert client.status(source.target).last_error == "a: the test has no such chunk"


def test_passed_chunks_are_read_without_a_store(source: Source) -> None:
    source.stored = False
    client = source.client()
    client.mount(source.request(source.table({b"a": b"x" * 200_000})))
    assert output("print(len(open(t + '/a').read()))", source.target) == "200000"
    assert source.store.usage().chunks == 0


def test_second_client_is_asked_when_the_first_ends(source: Source) -> None:
    source.held = []
    first, second = source.client(), source.client()
    request = source.request(source.table({b"a": b"one"}))
    first.mount(request)
    second.mount(request)
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append(content(source.target, "a")))
    reader.start()
    assert source.asked.acquire(timeout=LIMIT)
    first.close()
    assert source.asked.acquire(timeout=LIMIT)
    source.held[1]()
    reader.join(LIMIT)
    assert found == ["one"]


def test_reader_gets_an_error_in_time(source: Source) -> None:
    source.held = []
    client = source.client()
    client.mount(source.request(source.table({b"a": b"one"}), read_timeout=0.3))
    assert "Input/output error" in content(source.target, "a")
    assert "time" in client.status(source.target).last_error


@pytest.mark.parametrize("target", ["relative", "", "/", "/tmp/a\0b"])
def test_malformed_mount_points_are_refused(source: Source, target: str) -> None:
    with pytest.raises(ValueError, match="mount point"):
        source.client().mount(source.request(source.table({}))._replace(target=target))


def test_mount_point_that_is_a_file_is_refused(source: Source) -> None:
    Path(source.folder, "file").touch()
    client = source.client()
    with pytest.raises(FsError, match="file: the mount point is not a directory"):
        client.mount(source.request(source.table({}), target=f"{source.folder}/file"))
    with pytest.raises(FsError, match=r"file/below.*[Nn]ot a directory"):
        client.mount(source.request(source.table({}), target=f"{source.folder}/file/below"))


def test_mount_point_that_cannot_be_made_is_named(source: Source) -> None:
    with pytest.raises(FsError, match="^/proc/none: the mount point cannot be made: No such file"):
        source.client().mount(source.request(source.table({}), target="/proc/none"))


def test_non_empty_mount_point_is_covered_and_kept(source: Source) -> None:
    os.makedirs(source.target)
    Path(source.target, "below").touch()
    client = source.client()
    client.mount(source.request(source.table({b"a": b"one"})))
    assert output("print(os.listdir(t))", source.target) == "['a']"
    client.unmount(source.target)
    assert os.listdir(source.target) == ["below"]


def test_links_lead_to_one_mount(source: Source) -> None:
    os.makedirs(source.target)
    os.symlink(os.path.dirname(source.target), source.folder / "link")
    client = source.client()
    client.mount(source.request(source.table({b"a": b"one"})))
    other = source.client()
    other.mount(source.request(source.table({b"a": b"one"}), target=f"{source.folder}/link/mount"))
    assert other.status(f"{source.folder}/link/mount").users == 2


def test_other_sources_and_mounts_are_busy(source: Source) -> None:
    client, other = source.client(), source.client()
    client.mount(source.request(source.table({b"a": b"one"}), "first source"))
    with pytest.raises(MountBusyError, match="a mount of first source is there since"):
        other.mount(source.request(source.table({b"a": b"one"}), "second source"))
    with pytest.raises(MountBusyError, match="with other options"):
        other.mount(source.request(source.table({b"a": b"one"}), "first source", read_timeout=1.0))
    assert content(source.target, "a") == "one" and client.status(source.target).users == 1
    tmpfs = source.folder / "tmpfs"
    tmpfs.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "a source", str(tmpfs)], check=True)
    try:
        with pytest.raises(MountBusyError, match="tmpfs of a source is mounted there"):
            client.mount(source.request(source.table({}), target=str(tmpfs)))
    finally:
        subprocess.run(["umount", str(tmpfs)], check=True)


def test_dead_mount_is_replaced(source: Source) -> None:
    os.makedirs(source.target)
    dead = connection.open_connection(source.target, MountOptions())
    os.close(dead.fd)
    assert "not connected" in output("print(os.listdir(t))", source.target)
    client = source.client()
    client.mount(source.request(source.table({b"a": b"one"})))
    assert content(source.target, "a") == "one"
    client.unmount(source.target)
    assert not source.mounted()


def test_held_mount_is_detached_with_its_holders(source: Source) -> None:
    client = source.client()
    client.mount(source.request(source.table({b"a": b"one"})))
    command = [sys.executable, "-I", "-S", "-c", "print(open('a').read(), flush=True); input(); print(open('a').read())"]
    holder = subprocess.Popen(command, cwd=source.target, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "one\n"
    lazy, holders = client.unmount(source.target)
    assert lazy and [pid for pid, _ in holders] == [holder.pid] and "python" in holders[0][1]
    assert not source.mounted() and f"held by {holder.pid}" in source.log()
    # The next mount is independent of the detached one.
    client.mount(source.request(source.table({b"a": b"two"})))
    assert content(source.target, "a") == "two"
    assert holder.communicate("\n", timeout=LIMIT)[0] == "one\n"


def test_pages_are_pushed_into_the_kernel(source: Source) -> None:
    client = source.client()
    table = source.table({b"a": b"one" * 1000, b"b": b"two"})
    client.mount(source.request(table))
    for id, chunk in source.contents.items():
        source.store.put(id, chunk)
    assert client.push(source.target, list(table.chunk_ids()), walk=False) == 0
    assert client.push(source.target, list(table.chunk_ids())) == 2
    assert output("print(len(open(t + '/a').read()), open(t + '/b').read())", source.target) == "3000 two"
    assert client.status(source.target).requests.get("read", 0) == 0


def test_descriptors_do_not_leak(source: Source) -> None:
    client = source.client()
    table = source.table({b"a": b"one"})

    def cycle() -> None:
        client.mount(source.request(table))
        client.unmount(source.target)

    def held() -> list[int]:
        return [len(os.listdir(f"/proc/{pid}/fd")) for pid in (client.daemon_pid, os.getpid())]

    cycle()
    before = held()
    for _ in range(20):
        cycle()
    # Descriptors of ending processes appear and disappear; a leak would be 20 of them.
    assert all(now < old + 10 for now, old in zip(held(), before, strict=True))
