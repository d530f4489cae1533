"""The switch of a mounted tree to the next generation, as a caching client sees it, and restarts of the server."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from fs_edited_tree import Chunks, EditedTree, Kernel, answer, differences, error_of
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch.fs._daemon import numbering, tree_state
from monarch.fs._daemon.mounted_tree import MountedTree
from monarch.fs._daemon.numbering import Change
from monarch.fs._daemon.tree_state import StateError
from monarch.fs._tree.difference import difference
from monarch.fs._tree.operations import ROOT


def switch(mounted: MountedTree, tree: EditedTree) -> Change:
    change = mounted.prepare(tree.table())
    mounted.begin(change)
    mounted.commit(change)
    return change


@pytest.fixture
def tree() -> EditedTree:
    tree = EditedTree(Chunks())
    tree.directory(b"d")
    tree.directory(b"d/e")
    tree.file(b"d/e/f", b"old")
    tree.file(b"a", b"first")
    tree.hard_link(b"b", b"a")
    return tree


@pytest.fixture
def mounted(tree: EditedTree, tmp_path: Path) -> MountedTree:
    return MountedTree(tree.table(), tree.chunks, tmp_path / "state")


@settings(max_examples=150, deadline=None)
@given(st.integers(min_value=0, max_value=2**32))
def test_every_reader_sees_one_generation(seed: int) -> None:
    random = Random(seed)
    chunks = Chunks()
    tree = EditedTree(chunks)
    for _ in range(25):
        tree.edit(random)
    with TemporaryDirectory() as folder:
        table = tree.table()
        kernel = Kernel(MountedTree(table, chunks, Path(folder)))
        # Open files and working directories, with the content that an open file keeps.
        opened: dict[int, bytes] = {}
        standing: set[int] = set()

        def look(whole: bool) -> None:
            if whole or random.random() < 0.3:
                assert differences(kernel, table, chunks) == []
            for inode, content in opened.items():
                assert kernel.read(inode) == content
            if random.random() < 0.1:
                kernel.evict(opened.keys() | standing, random)
            if random.random() < 0.05:
                kernel.tree = MountedTree.restore(Path(folder), chunks)

        for _ in range(4):
            look(True)
            for path, index in table.walk():
                inode = kernel.walk(path)
                assert inode is not None
                kind = table.node(index).kind.name
                if kind == "FILE" and random.random() < 0.2:
                    opened[inode] = kernel.read(inode)
                elif kind == "DIRECTORY" and random.random() < 0.2:
                    standing.add(inode)
            paths = {inode: [path for path, _ in table.walk() if kernel.walk(path) == inode] for inode in standing}
            for _ in range(random.randrange(6)):
                tree.edit(random)
            new = tree.table()
            change = kernel.tree.prepare(new)
            look(False)
            served = kernel.tree
            change = change if served.fits(change) else served.prepare(new)
            served.begin(change)
            if random.random() < 0.2:
                served.cancel(change)
                assert differences(kernel, table, chunks) == []
                served.begin(change)
            for entry in random.sample(change.entries, len(change.entries)):
                kernel.invalidate([entry], [])
                if random.random() < 0.2:
                    assert differences(kernel, table, chunks) == []
            kernel.invalidate([], change.inodes)
            assert differences(kernel, table, chunks) == []
            served.commit(change)
            table = new
            look(True)
            # A process with this working directory sees its new content, or that of a removed directory.
            for inode in standing:
                if kernel.walk(paths[inode][0]) == inode if paths.get(inode) else False:
                    continue
                assert kernel.listdir(inode) == []
                assert all(kernel.lookup(inode, name) is None for name in (b"a", b"b", b"c", b"d"))


def test_unchanged_nodes_keep_their_inodes(mounted: MountedTree, tree: EditedTree) -> None:
    before = {path: mounted.inode_of(path) for path in tree.paths}
    tree.file(b"0", b"comes first")
    tree.file(b"d/e/0", b"comes first")
    tree.alter(b"d", mode=0o700)
    change = switch(mounted, tree)
    assert {path: mounted.inode_of(path) for path in before} == before
    assert change.entries == [(ROOT, b"0"), (before[b"d/e"], b"0")] or sorted(change.entries) == [(ROOT, b"0"), (before[b"d/e"], b"0")]
    assert set(change.inodes) == {ROOT, before[b"d"], before[b"d/e"]}
    assert change.gone == {}


def test_same_tree_has_no_change(mounted: MountedTree, tree: EditedTree) -> None:
    change = mounted.prepare(tree.table())
    assert (change.entries, change.inodes, change.gone) == ([], [], {})


def test_changed_content_gets_a_new_inode(mounted: MountedTree, tree: EditedTree) -> None:
    before = mounted.inode_of(b"d/e/f")
    assert before is not None
    mounted.lookup(mounted.inode_of(b"d/e") or 0, b"f")
    tree.file(b"d/e/f", b"new")
    switch(mounted, tree)
    after = mounted.inode_of(b"d/e/f")
    assert after is not None and after != before
    assert answer(mounted.read(before, 0, 9)) == b"old" and answer(mounted.read(after, 0, 9)) == b"new"
    assert mounted.status().retired == 1
    mounted.forget(before, 1)
    assert error_of(mounted.read, before, 0, 9) == errno.ESTALE
    assert mounted.status().retired == 0


def test_changed_attributes_keep_the_inode(mounted: MountedTree, tree: EditedTree) -> None:
    before = mounted.inode_of(b"a")
    tree.alter(b"a", mode=0o600, mtime_ns=99)
    change = switch(mounted, tree)
    assert mounted.inode_of(b"a") == mounted.inode_of(b"b") == before and change.inodes == [before]
    assert mounted.attr(before or 0).mtime_ns == 99


def test_split_hard_link_changes_one_name(mounted: MountedTree, tree: EditedTree) -> None:
    before = mounted.inode_of(b"a")
    tree.remove(b"b")
    tree.file(b"b", b"first")
    change = switch(mounted, tree)
    assert mounted.inode_of(b"a") == before != mounted.inode_of(b"b")
    assert change.entries == [(ROOT, b"b")]


def test_new_hard_link_keeps_the_inode(mounted: MountedTree, tree: EditedTree) -> None:
    before = mounted.inode_of(b"a")
    tree.hard_link(b"0", b"a")
    switch(mounted, tree)
    assert mounted.inode_of(b"0") == mounted.inode_of(b"a") == before
    assert mounted.attr(before or 0).nlink == 3


def test_changing_names_are_uncached_until_the_commit(mounted: MountedTree, tree: EditedTree) -> None:
    tree.file(b"new", b"x")
    tree.remove(b"d")
    d = mounted.inode_of(b"d") or 0
    change = mounted.prepare(tree.table())
    mounted.begin(change)
    assert mounted.lookup(ROOT, b"new")[1:3] == (None, 0.0)
    assert mounted.lookup(ROOT, b"d").valid == mounted.lookup(d, b"e").valid == mounted.attr(ROOT).valid == 0.0
    assert {entry.name: entry.valid for entry in mounted.readdir(ROOT, 0)} == {b"a": float("inf"), b"b": float("inf"), b"d": 0.0}
    mounted.commit(change)
    assert mounted.lookup(ROOT, b"new").valid == mounted.attr(ROOT).valid == float("inf")
    assert mounted.lookup(ROOT, b"d").attr is None


def test_silent_change_of_a_listing_shows_another_time(mounted: MountedTree, tree: EditedTree) -> None:
    tree.file(b"new", b"x")
    change = mounted.prepare(tree.table())
    before = mounted.attr(ROOT).mtime_ns
    mounted.begin(change)
    assert mounted.attr(ROOT).mtime_ns != before
    mounted.commit(change)
    assert mounted.attr(ROOT).mtime_ns == before


def test_listing_over_a_commit_has_unchanged_names_once(mounted: MountedTree, tree: EditedTree) -> None:
    for number in range(300):
        tree.file(b"n%03d" % number, b"x")
    switch(mounted, tree)
    first = list(mounted.readdir(ROOT, 0))[:150]
    for number in range(0, 300, 3):
        tree.remove(b"n%03d" % number)
        tree.file(b"m%03d" % number, b"y")
    switch(mounted, tree)
    names = [entry.name for entry in [*first, *mounted.readdir(ROOT, first[-1].cookie)]]
    for number in range(300):
        assert names.count(b"n%03d" % number) == 1 or number % 3 == 0
    assert len(names) == len(set(names))


def test_switch_in_the_wrong_order_is_refused(mounted: MountedTree, tree: EditedTree) -> None:
    tree.file(b"x", b"1")
    first = mounted.prepare(tree.table())
    tree.file(b"x", b"2")
    second = mounted.prepare(tree.table())
    with pytest.raises(ValueError, match="has not begun"):
        mounted.commit(first)
    mounted.begin(first)
    with pytest.raises(ValueError, match="is under way"):
        mounted.begin(second)
    mounted.commit(first)
    with pytest.raises(ValueError, match="the tree shows"):
        mounted.begin(second)


def test_change_from_other_numbers_is_refused(mounted: MountedTree, tree: EditedTree) -> None:
    first = tree.table()
    tree.file(b"x", b"1")
    late = mounted.prepare(tree.table())
    tree.file(b"d/e/f", b"new")
    switch(mounted, tree)
    back = mounted.prepare(first)
    mounted.begin(back)
    mounted.commit(back)
    # The same generation as before, in which `d/e/f` has another number.
    assert mounted.generation == late.base and not mounted.fits(late)
    with pytest.raises(ValueError, match="the tree shows"):
        mounted.begin(late)


def test_restored_tree_has_the_same_numbers(mounted: MountedTree, tree: EditedTree, tmp_path: Path) -> None:
    old = mounted.inode_of(b"d/e/f") or 0
    mounted.lookup(mounted.inode_of(b"d/e") or 0, b"f")
    tree.file(b"d/e/f", b"new", xattrs=((b"user.x", b"1"),))
    tree.file(b"0", b"0")
    switch(mounted, tree)
    restored = MountedTree.restore(tmp_path / "state", tree.chunks)
    assert restored.generation == mounted.generation
    for path in tree.paths:
        assert restored.inode_of(path) == mounted.inode_of(path)
        assert restored.attr(restored.inode_of(path) or 0) == mounted.attr(mounted.inode_of(path) or 0)
    assert answer(restored.read(old, 0, 9)) == b"old" and restored.attr(old) == mounted.attr(old)
    # References of the earlier process are unknown: only a larger count shows that the kernel dropped the inode.
    restored.forget(old, 1)
    assert error_of(restored.attr, old) == errno.ESTALE


class Killed(Exception):
    pass


@pytest.mark.parametrize("by_difference", [False, True], ids=["whole tables", "differences"])
def test_kill_at_each_write_leaves_one_generation(
    tree: EditedTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_difference: bool
) -> None:
    write, replace = Path.write_bytes, os.replace
    left = 0

    def step(call: Callable[..., object]) -> Callable[..., object]:
        def counted(*arguments: object, **options: object) -> object:
            nonlocal left
            left -= 1
            if left == 0:
                raise Killed
            return call(*arguments, **options)

        return counted

    def torn(path: Path, data: bytes) -> object:
        nonlocal left
        left -= 1
        if left == 0:
            write(path, data[: len(data) // 2])
            raise Killed
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", torn)
    monkeypatch.setattr(tree_state.os, "replace", step(replace))
    monkeypatch.setattr(Path, "unlink", step(Path.unlink))
    before = tree.table()
    tree.file(b"d/e/f", b"new")
    after = tree.table()
    delta = (before.generation, difference(before, after)) if by_difference else None
    seen: list[str] = []
    for kill in range(1, 100):
        left = 0
        mounted = MountedTree(before, tree.chunks, tmp_path / str(kill))
        numbers = {path: mounted.inode_of(path) for path in tree.paths}
        left = kill
        try:
            change = mounted.prepare(after, delta)
            mounted.begin(change)
            mounted.commit(change)
        except Killed:
            pass
        ended = left > 0
        left = 0
        restored = MountedTree.restore(tmp_path / str(kill), tree.chunks)
        seen.append(restored.generation)
        kept = {path: restored.inode_of(path) for path in tree.paths if path != b"d/e/f"}
        assert kept == {path: number for path, number in numbers.items() if path != b"d/e/f"}
        assert restored.generation in (before.generation, after.generation)
        content = answer(restored.read(restored.inode_of(b"d/e/f") or 0, 0, 9))
        assert content == (b"old" if restored.generation == before.generation else b"new")
        if restored.generation == before.generation:
            again = restored.prepare(after)
            restored.begin(again)
            restored.commit(again)
        # The next commit removes the files that a killed one left.
        back = restored.prepare(before)
        restored.begin(back)
        restored.commit(back)
        assert len(list((tmp_path / str(kill)).iterdir())) == 3
        if ended:
            break
    # Old before the rename of `current`, new from there on, with kills on both sides.
    assert seen == sorted(seen, key=[before.generation, after.generation].index)
    assert seen.count(before.generation) >= 6 and seen.count(after.generation) >= (1 if by_difference else 2)


def test_tables_of_small_changes_are_kept_as_differences(mounted: MountedTree, tree: EditedTree, tmp_path: Path) -> None:
    folder = tmp_path / "state"
    table, kinds = tree.table(), set[frozenset[str]]()
    for number in range(40):
        tree.file(b"d/e/f", b"%d" % number)
        following = tree.table()
        change = mounted.prepare(following, (table.generation, difference(table, following)))
        mounted.begin(change)
        mounted.commit(change)
        table = following
        names = [path.name for path in folder.iterdir()]
        kinds.add(frozenset(name.partition("-")[0] for name in names))
        # The whole table, 16 differences, numbers and `current`.
        assert len(names) <= 19 and sum(name.startswith("table-") for name in names) == 1
        restored = MountedTree.restore(folder, tree.chunks)
        assert restored.generation == table.generation
        assert {path: restored.inode_of(path) for path in tree.paths} == {path: mounted.inode_of(path) for path in tree.paths}
        if number % 7 == 6:
            mounted = restored
    assert len(kinds) == 2


def test_damaged_differences_name_the_file(mounted: MountedTree, tree: EditedTree, tmp_path: Path) -> None:
    before = tree.table()
    tree.file(b"d/e/f", b"new")
    after = tree.table()
    change = mounted.prepare(after, (before.generation, difference(before, after)))
    mounted.begin(change)
    mounted.commit(change)
    path = tmp_path / "state" / f"delta-{after.generation}"
    data = path.read_bytes()
    for damaged in (data[:-1], data[:80], data[:90] + bytes([data[90] ^ 1]) + data[91:], data + b"\0"):
        path.write_bytes(damaged)
        with pytest.raises(StateError, match=path.name):
            MountedTree.restore(tmp_path / "state", tree.chunks)
    for damaged in (b"", data[:20], b"f" * 64 + data[64:]):
        path.write_bytes(damaged)
        with pytest.raises(StateError, match="no such file"):
            MountedTree.restore(tmp_path / "state", tree.chunks)
    # A difference whose base is itself ends too.
    path.write_bytes(after.generation.encode() + data[64:])
    with pytest.raises(StateError, match=path.name):
        MountedTree.restore(tmp_path / "state", tree.chunks)


def test_damaged_state_names_the_file(mounted: MountedTree, tmp_path: Path, tree: EditedTree) -> None:
    folder = tmp_path / "state"
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        for damaged in (data[:-1], data[:20], b"", data[:30] + bytes([data[30] ^ 1]) + data[31:], data + b"\0"):
            path.write_bytes(damaged)
            with pytest.raises(StateError, match=path.name):
                MountedTree.restore(folder, tree.chunks)
        path.unlink()
        with pytest.raises(StateError, match=path.name):
            MountedTree.restore(folder, tree.chunks)
        path.write_bytes(data)
    assert MountedTree.restore(folder, tree.chunks).generation == mounted.generation


@pytest.mark.parametrize("run", [1, 4, 512])
def test_inode_numbers_of_the_next_table_are_consistent(run: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbering, "_RUN", run)
    random = Random(run)
    tree = EditedTree(Chunks())
    for folder in range(12):
        tree.directory(b"d%02d" % folder)
        for number in range(8):
            tree.file(b"d%02d/f%d" % (folder, number), b"%d" % number)
    mounted = MountedTree(tree.table(), tree.chunks, tmp_path / "state")
    for step in range(60):
        for _ in range(random.randint(1, 3)):
            path = random.choice([b"d%02d/f%d", b"d%02d/new%d"]) % (random.randrange(12), random.randrange(8))
            if path in tree.paths and random.random() < 0.4:
                tree.remove(path)
            else:
                tree.file(path, b"%d" % step)
        made = switch(mounted, tree).numbering
        assert [made.index(inode) for inode in made.numbers] == list(range(len(made.numbers)))
        shown = set(made.numbers)
        assert all(made.index(inode) == -1 for inode in range(made.following) if inode not in shown)
