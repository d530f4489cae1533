"""The tree of a gather mount over file servers of this process, and its cache."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Coroutine, Generator, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

from monarch.fs._gather.block_cache import BLOCK, LARGEST_WINDOW, BlockCache, Window
from monarch.fs._gather.file_server import FileServer
from monarch.fs._gather.gathered_tree import GatheredTree
from monarch.fs._gather.host_request import Answer, Body, answer, decode, decode_changes, encode, encode_changes
from monarch.fs._gather.watcher import Changed
from monarch.fs._tree.operations import ROOT, Entry

T = TypeVar("T")


class Servers:
    """The hosts of a tree; they answer at once, or not at all."""

    def __init__(self, *roots: Path) -> None:
        self.servers = [FileServer(str(root), lambda _: None) for root in roots]
        self.asked: list[tuple[int, Body]] = []
        self.lost: set[int] = set()
        self.before: Callable[[Body], object] = lambda _: None

    def ask(self, host: int, body: Body, then: Callable[[Answer], object]) -> None:
        self.asked.append((host, body))
        self.before(body)
        if host in self.lost:
            then(Answer({"errno": errno.EIO, "reason": "lost"}))
        else:
            then(decode(answer(self.servers[host], decode(encode(body)).body)))

    def reads(self) -> list[tuple[int, int]]:
        """Blocks that were asked for, as first block and count, since the last call."""
        found = [(body["offset"] // BLOCK, body["size"] // BLOCK) for _, body in self.asked if body["op"] == "read"]
        self.asked.clear()
        return found


class View:
    def __init__(self, points: list[str], *roots: Path, cache: int = 64 << 20) -> None:
        self.hosts = Servers(*roots)
        self.dropped: list[tuple[list[tuple[int, bytes]], list[int]]] = []
        self.tree = GatheredTree(points, self.hosts, cache, lambda names, inodes: self.dropped.append((names, inodes)))

    def find(self, path: str) -> Entry:
        entry = Entry(b"", done(self.tree.attr(ROOT)))
        for name in path.split("/"):
            assert entry.attr is not None
            entry = done(self.tree.lookup(entry.attr.inode, name.encode()))
        return entry

    def inode(self, path: str) -> int:
        attr = self.find(path).attr
        assert attr is not None
        return attr.inode


def done(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that has nothing to wait for."""
    try:
        coroutine.send(None)
    except StopIteration as e:
        return e.value
    coroutine.close()
    raise AssertionError("it waits")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    (folder / "file").write_bytes(b"content")
    return folder


@pytest.fixture
def view(root: Path) -> Iterator[View]:
    view = View(["a"], root)
    yield view
    for server in view.hosts.servers:
        server.close()


def names(view: View, inode: int, after: int = 0) -> list[bytes]:
    return [entry.name for entry in done(view.tree.readdir(inode, after))]


def test_meshes_have_directories_of_their_hosts(root: Path) -> None:
    view = View(["trainers/hosts_0", "trainers/hosts_1", "readers"], root, root, root)
    assert names(view, ROOT) == [b"readers", b"trainers"]
    assert names(view, view.inode("trainers")) == [b"hosts_0", b"hosts_1"]
    assert names(view, view.inode("trainers"), 1) == [b"hosts_1"]
    found = view.find("trainers/hosts_1/file").attr
    assert found is not None and stat.S_ISREG(found.mode) and found.size == 7
    assert view.find("trainers/hosts_2").attr is None


def test_write_bits_are_hidden_and_owner_is_local(view: View, root: Path) -> None:
    (root / "file").chmod(0o777)
    found = view.find("a/file").attr
    assert found is not None
    assert (found.mode, found.nlink, found.uid, found.gid) == (stat.S_IFREG | 0o555, 1, os.getuid(), os.getgid())
    assert 0 < found.valid <= 1


def test_lost_host_stays_listed(root: Path) -> None:
    view = View(["a", "b"], root, root)
    inode = view.inode("a/file")
    view.hosts.lost.add(0)
    assert names(view, ROOT) == [b"a", b"b"]
    attr = view.find("a").attr
    assert attr is not None and stat.S_ISDIR(attr.mode)
    for act in (
        view.tree.lookup(attr.inode, b"file"),
        view.tree.readdir(attr.inode, 0),
        view.tree.open(inode),
        view.tree.read(inode, 0, 9),
    ):
        with pytest.raises(OSError, match="lost") as caught:
            done(act)
        assert caught.value.errno == errno.EIO
    assert bytes(done(view.tree.read(view.inode("b/file"), 0, 9))) == b"content"
    view.hosts.lost.clear()
    assert done(view.tree.read(inode, 0, 9)) == b"content"


def test_name_of_another_kind_is_another_inode(view: View, root: Path) -> None:
    inode = view.inode("a/file")
    (root / "file").unlink()
    # A file system reuses the number of a removed file.
    (root / "file").symlink_to("elsewhere")
    found = view.find("a/file").attr
    assert found is not None and stat.S_ISLNK(found.mode) and found.inode != inode


def test_read_ahead_doubles_for_sequential_reads_only(view: View, root: Path) -> None:
    with (root / "large").open("wb") as file:
        file.truncate(100 * BLOCK + 5)
    inode = view.inode("a/large")
    assert len(done(view.tree.read(inode, 50 * BLOCK + 3, 1))) == 1
    assert view.hosts.reads() == [(50, 1)]
    for at in range(4):
        assert len(done(view.tree.read(inode, at * BLOCK, BLOCK))) == BLOCK
    assert view.hosts.reads() == [(0, 1), (1, 1), (2, 1), (3, 2), (5, 3)]
    for at in range(4, 60):
        assert len(done(view.tree.read(inode, at * BLOCK, BLOCK))) == BLOCK
    assert view.hosts.reads() == [(8, 5), (13, 9), (22, 17), (39, 11), (51, 5), (56, 17), (73, 17)]
    assert len(done(view.tree.read(inode, 100 * BLOCK, BLOCK))) == 5
    assert view.hosts.reads() == [(100, 1)]
    assert done(view.tree.read(inode, 200 * BLOCK, BLOCK)) == b""


def test_read_ahead_window_has_a_bound() -> None:
    window = Window()
    assert window.after(0, 0) == 0
    assert [window.after(at, at) for at in range(1, 9)] == [1, 2, 4, 8, 16, 32, 32, 32]
    assert LARGEST_WINDOW == 32 * BLOCK
    # The rest of a partly read block is not a step ahead.
    assert window.after(8, 8) == 32
    assert window.after(70, 70) == 0


def test_cache_is_bounded(root: Path) -> None:
    (root / "large").write_bytes(os.urandom(8 * BLOCK))
    view = View(["a"], root, cache=3 * BLOCK)
    inode = view.inode("a/large")
    content = b"".join(bytes(done(view.tree.read(inode, at * BLOCK, BLOCK))) for at in range(8))
    assert content == (root / "large").read_bytes()
    assert view.tree.cache.used <= 3 * BLOCK
    whole = done(view.tree.read(inode, 0, 8 * BLOCK))
    assert whole == content


def test_blocks_of_another_version_are_not_found() -> None:
    cache = BlockCache(10)
    cache.put(1, 0, (5, 0, 0), b"12345")
    assert cache.get(1, 0, (5, 0, 0)) == b"12345" and cache.get(1, 0, (6, 0, 0)) is None
    cache.put(1, 0, (6, 0, 0), b"123456")
    assert cache.used == 6
    cache.put(2, 0, (6, 0, 0), b"123456")
    assert cache.get(1, 0, (6, 0, 0)) is None and cache.used == 6


def test_change_report_invalidates_attributes_in_the_kernel(view: View, root: Path) -> None:
    inode, directory = view.inode("a/file"), view.inode("a")
    (root / "file").write_bytes(b"longer content")
    assert done(view.tree.attr(inode)).size == 7
    view.tree.changed(0, [Changed(b"", b"file", False)])
    assert view.dropped == [([], [inode])]
    assert done(view.tree.attr(inode)).size == 14
    view.tree.changed(0, [Changed(b"", b"new", True)])
    assert view.dropped[1:] == [([(directory, b"new")], [directory])]
    view.tree.changed(0, None)
    assert view.dropped[2:] == [([(directory, b"file")], sorted([directory, inode]))]


def test_answer_older_than_a_report_is_not_cached(view: View) -> None:
    inode = view.inode("a/file")
    view.tree.changed(0, None)
    view.hosts.before = lambda _: view.tree.changed(0, [Changed(b"", b"file", False)])
    assert done(view.tree.attr(inode)).valid == 0.0
    view.hosts.before = lambda _: None
    assert done(view.tree.attr(inode)).valid > 0


def test_renamed_file_keeps_its_inode_number(view: View, root: Path) -> None:
    inode = view.inode("a/file")
    done(view.tree.open(inode))
    (root / "file").rename(root / "file.1")
    (root / "file").write_bytes(b"new")
    assert view.inode("a/file.1") == inode != view.inode("a/file")
    (root / "file.1").unlink()
    view.tree.changed(0, None)
    assert done(view.tree.attr(inode)).size == 7
    assert done(view.tree.read(inode, 0, 10)) == b"content"


def test_file_truncated_during_a_read_is_short(view: View, root: Path) -> None:
    (root / "large").write_bytes(b"x" * 3 * BLOCK)
    inode = view.inode("a/large")
    view.hosts.before = lambda body: os.truncate(root / "large", 100)
    assert done(view.tree.read(inode, 0, 3 * BLOCK)) == b"x" * 100
    view.hosts.before = lambda _: None
    assert done(view.tree.attr(inode)).size == 100


def test_inodes_that_the_kernel_has_dropped_are_dropped(view: View, root: Path) -> None:
    inode = view.inode("a/file")
    entries = cast("Generator[Entry]", done(view.tree.readdir(view.inode("a"), 0)))
    assert next(entries).name == b"file"
    # The kernel had no room for the entry.
    entries.close()
    assert done(view.tree.attr(inode)).size == 7
    view.tree.forget(inode, 1)
    with pytest.raises(OSError, match="no such inode") as caught:
        done(view.tree.attr(inode))
    assert caught.value.errno == errno.ESTALE
    assert names(view, view.inode("a")) == [b"file"]
    assert view.inode("a/file") != inode


def test_listing_continues_although_the_directory_changes(view: View, root: Path) -> None:
    for number in range(6):
        (root / f"name {number}").touch()
    directory = view.inode("a")
    entries = list(done(view.tree.readdir(directory, 0)))
    half, rest = entries[:3], {entry.name for entry in entries[3:]}
    (root / os.fsdecode(half[0].name)).unlink()
    (root / "a new one").touch()
    # Another reader lists it from the start.
    assert len(names(view, directory)) == 7
    assert set(names(view, directory, half[-1].cookie)) == rest | {b"a new one"}


def test_lookups_in_listing_order_are_batched(view: View, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy machine, attributes must not expire during the test.
    monkeypatch.setattr("monarch.fs._gather.gathered_tree.VALID", 3600.0)
    for number in range(600):
        (root / f"n{number:03}").write_bytes(b"x" * number)
    parent = view.inode("a")
    found = names(view, parent)
    view.hosts.asked.clear()
    sizes = {}
    for name in found:
        attr = done(view.tree.lookup(parent, name)).attr
        assert attr is not None
        sizes[name] = attr.size
    assert sizes == {name: (root / os.fsdecode(name)).stat().st_size for name in found}
    # 256 names a request.
    assert [body["op"] for _, body in view.hosts.asked] == ["attrs"] * 3
    view.hosts.asked.clear()
    for name in found[::-1]:
        done(view.tree.lookup(parent, name))
    assert {body["op"] for _, body in view.hosts.asked} == {"attr"}


def test_names_that_were_reported_are_asked_for_again(view: View, root: Path) -> None:
    for number in range(4):
        (root / f"n{number}").write_bytes(b"old")
    parent = view.inode("a")
    found = names(view, parent)

    def size(name: bytes) -> int | None:
        attr = done(view.tree.lookup(parent, name)).attr
        return None if attr is None else attr.size

    assert size(found[0]) == 7  # "file"
    (root / "n1").write_bytes(b"later")
    (root / "n2").unlink()
    view.tree.changed(0, [Changed(b"", b"n1", False), Changed(b"", b"n2", True)])
    assert [size(name) for name in found[1:]] == [3, 5, None, 3]
    # An answer from before a report is dropped.
    found = names(view, parent)
    view.hosts.before = lambda body: view.tree.changed(0, [Changed(b"", b"n3", False)]) if body["op"] == "attrs" else None
    assert size(found[0]) == 7
    view.hosts.before = lambda _: None
    (root / "n3").write_bytes(b"now it is")
    assert size(b"n3") == 9


def test_endless_listing_is_refused(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monarch.fs._gather.gathered_tree.LONGEST_LISTING", 10)
    inode = view.inode("a")
    for entries in ([("x", [0] * 7)] * 3, []):

        def ask(host: int, body: Body, then: Callable[[Answer], object], entries: list[Any] = entries) -> None:
            then(Answer({"entries": entries, "last": False, "after": body["after"]}))

        monkeypatch.setattr(view.hosts, "ask", ask)
        with pytest.raises(OSError, match="more than 10 names"):
            done(view.tree.readdir(inode, 0))


def test_malformed_report_invalidates_everything() -> None:
    for body in ({}, {"changes": 3}, {"changes": [["a"]]}, {"changes": [[1, 2, 3]]}):
        assert decode_changes(body) is None


def test_malformed_requests_are_answered(view: View) -> None:
    server = view.hosts.servers[0]
    for body in ({}, {"op": "read", "path": "file"}, {"op": "none", "path": "", "file": [1, 2]}, {"op": "attr", "path": 5}):
        assert decode(answer(server, body)).body["errno"] == errno.EINVAL
    with pytest.raises(ValueError):
        decode(b"[1]\n")
    changes = [Changed(b"\xff", b"a\nb", True)]
    assert decode_changes(decode(encode_changes(changes)).body) == changes
    assert decode_changes(decode(encode_changes(None)).body) is None
