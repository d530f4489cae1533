"""The result of a sync's scan of a directory, and its record."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monarch._core.sync import tree as workspace_tree
from monarch._core.sync.node import (
    DIRECTORY,
    EXECUTABLE,
    FILE,
    LINK,
    Entry,
    MalformedTree,
    digest_of,
    pack_node,
    parse_node,
    stays_within,
)
from monarch._core.sync.tree import SourceChanged, Tree, scan
from monarch._core.trees.directory_scan import DirectoryScan


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    return cache


@pytest.fixture
def top(tmp_path: Path) -> Path:
    made = tmp_path / "top"
    made.mkdir()
    return made


def look(top: Path) -> Tree:
    return scan(os.fsencode(top))


def names(tree: Tree) -> dict[str, bytes]:
    """The kinds of all paths."""
    found: dict[str, bytes] = {}

    def walk(digest: bytes, rel: str) -> None:
        for e in parse_node(tree.nodes[digest]):
            found[rel + os.fsdecode(e.name)] = e.kind
            if e.kind == DIRECTORY:
                walk(e.digest, rel + os.fsdecode(e.name) + "/")

    walk(tree.digest, "")
    return found


def fill(top: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(text)


def settle(top: Path) -> None:
    """Sets times long ago, so that digests may be recorded."""
    for path in top.rglob("*"):
        os.utime(path, ns=(10**18 + 1, 10**18 + 1), follow_symlinks=False)


def test_kinds(top: Path) -> None:
    fill(top, {"a.py": "a", "d/run": "r", "d/empty/x": ""})
    os.chmod(top / "d/run", 0o755)
    (top / "d/empty/x").unlink()
    (top / "l").symlink_to("d/run")
    os.mkfifo(top / "pipe")
    fill(top, {".git/config": "", "d/.git": "gitdir: elsewhere", "__pycache__/a.pyc": ""})
    tree = look(top)
    assert names(tree) == {"a.py": FILE, "d": DIRECTORY, "d/run": EXECUTABLE, "d/empty": DIRECTORY, "l": LINK}


def test_equal_content_equal_digest(top: Path, tmp_path: Path) -> None:
    fill(top, {"a": "1", "d/b": "2"})
    fill(tmp_path / "other", {"d/b": "2", "a": "1"})
    first = look(top).digest
    assert first == look(tmp_path / "other").digest
    os.chmod(tmp_path / "other/a", 0o755)
    assert first != look(tmp_path / "other").digest


def test_ignore_rules_of_the_work_tree_apply(tmp_path: Path) -> None:
    fill(tmp_path, {".git/HEAD": "", ".gitignore": "*.log\n/top/out\n", "outside/.gitignore": "*\n"})
    top = tmp_path / "top"
    fill(top, {"a.py": "", "a.log": "", "out/x": "", "deep/out/x": "", "deep/.gitignore": "!a.log\nout/x\n", "deep/a.log": ""})
    assert set(names(look(top))) == {"a.py", "deep", "deep/.gitignore", "deep/a.log", "deep/out"}
    # A directory that is named is always included, whatever the rules above it are.
    fill(tmp_path, {"outside/a": ""})
    assert set(names(look(tmp_path / "outside/"))) == set()
    (tmp_path / "outside/.gitignore").unlink()
    fill(tmp_path, {".gitignore": "outside\n"})
    assert set(names(look(tmp_path / "outside"))) == {"a"}


def test_changed_rules_change_what_is_left_out(top: Path) -> None:
    fill(top, {"a": "", "b": "", "d/a": "", ".gitignore": "a\n"})
    settle(top)
    assert set(names(look(top))) == {"b", "d", ".gitignore"}
    fill(top, {".gitignore": "b\n"})
    assert set(names(look(top))) == {"a", "d", "d/a", ".gitignore"}
    (top / ".gitignore").unlink()
    assert set(names(look(top))) == {"a", "b", "d", "d/a"}


def test_unchanged_files_are_not_read_again(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(top, {"a": "1", "d/b": "2", "d/e/c": "3"})
    settle(top)
    first = look(top)
    read: list[bytes] = []
    original = workspace_tree.digest_files
    monkeypatch.setattr(workspace_tree, "digest_files", lambda paths: read.extend(paths) or original(paths))
    monkeypatch.setattr(DirectoryScan, "TICK_NS", 0)
    second = look(top)
    # `settle` has changed their status a moment ago, so the first scan did not trust them.
    assert second.digest == first.digest and len(read) == 3
    read.clear()
    assert look(top).digest == first.digest and read == []
    fill(top, {"d/e/c": "4"})
    changed = look(top)
    assert changed.digest != first.digest and [os.path.basename(p) for p in read] == [b"c"]
    assert len(set(changed.nodes) & set(first.nodes)) == 0


def test_change_within_one_clock_tick_is_seen(top: Path) -> None:
    """Size, inode and times are the same: a file that was read right after it was written is read again."""
    fill(top, {"a": "1"})
    st = os.stat(top / "a")
    first = look(top)
    (top / "a").write_text("2")
    os.utime(top / "a", ns=(st.st_atime_ns, st.st_mtime_ns))
    assert look(top).digest != first.digest


@pytest.mark.parametrize("damage", [b"", b"x", b"x" * 4000])
def test_damaged_cache_is_discarded(top: Path, damage: bytes) -> None:
    fill(top, {"a": "1"})
    first = look(top)
    file = workspace_tree.cache_file(os.fsencode(top))
    with open(file, "wb") as f:
        f.write(damage)
    assert look(top).digest == first.digest


def test_unwritable_cache_is_not_used(top: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, {"file": ""})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    fill(top, {"a": "1"})
    assert look(top).digest == look(top).digest


def test_files_become_directories_and_back(top: Path) -> None:
    fill(top, {"a": "1", "b/c": "2", ".gitignore": "x/\n", "x": ""})
    settle(top)
    assert names(look(top)) == {".gitignore": FILE, "a": FILE, "b": DIRECTORY, "b/c": FILE, "x": FILE}
    (top / "a").unlink()
    (top / "x").unlink()
    (top / "b/c").unlink()
    (top / "b").rmdir()
    fill(top, {"a/c": "2", "b": "1", "x/y": ""})
    assert names(look(top)) == {".gitignore": FILE, "a": DIRECTORY, "a/c": FILE, "b": FILE}


def test_links(top: Path, tmp_path: Path) -> None:
    fill(top, {"d/a": "a"})
    fill(tmp_path, {"outside/file": "out", "outside/run": "run"})
    os.chmod(tmp_path / "outside/run", 0o755)
    (top / "d/up").symlink_to("../d/a")
    (top / "absolute").symlink_to(top / "d/a")
    (top / "dangling").symlink_to("nowhere")
    (top / "copy").symlink_to(tmp_path / "outside/file")
    (top / "run").symlink_to("../outside/run")
    tree = look(top)
    found = {e.name: e for e in parse_node(tree.nodes[tree.digest])}
    assert found[b"absolute"] == Entry(LINK, b"absolute", 0, b"d/a")
    assert found[b"dangling"] == Entry(LINK, b"dangling", 0, b"nowhere")
    assert found[b"copy"] == Entry(FILE, b"copy", 3, digest_of(b"out"))
    assert found[b"run"].kind == EXECUTABLE
    assert names(tree)["d/up"] == LINK
    assert tree.paths_of([digest_of(b"out")]) == {digest_of(b"out"): b"copy"}
    fill(tmp_path, {"outside/file": "changed"})
    assert look(top).digest != tree.digest


@pytest.mark.parametrize("target", ["../outside", "/", "/nowhere/at/all", "../nowhere", "d/link/../../outside"])
def test_links_that_no_host_could_follow(top: Path, tmp_path: Path, target: str) -> None:
    fill(tmp_path, {"outside/file": "out"})
    (top / "d").mkdir()
    (top / "d/link").symlink_to(".")
    (top / "l").symlink_to(target)
    with pytest.raises(ValueError, match=r"symbolic link .*/l leads to"):
        look(top)
    fill(top, {".gitignore": "/l\n"})
    assert "l" not in names(look(top))


def test_file_that_keeps_changing_is_an_error(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(top, {"a": "x"})
    original = workspace_tree.digest_files

    def unsettled(paths: list[bytes]) -> list[Any]:
        read = [found for found in original(paths) if not isinstance(found, OSError)]
        return [SimpleNamespace(record=found.record, digests=found.digests, settled=False) for found in read]

    monkeypatch.setattr(workspace_tree, "digest_files", unsettled)
    with pytest.raises(SourceChanged, match="/a changes while it is read"):
        look(top)


def test_changed_target_of_an_outside_link_is_seen(top: Path, tmp_path: Path) -> None:
    fill(tmp_path, {"outside": "1"})
    (top / "d").mkdir()
    (top / "d" / "l").symlink_to(tmp_path / "outside")
    settle(top)
    look(top)
    # The listing of `d` has not changed.
    os.utime(top / "d" / "l", ns=(10**18, 10**18), follow_symlinks=False)
    workspace = [look(top).digest, look(top).digest]
    fill(tmp_path, {"outside": "2"})
    assert workspace[0] == workspace[1] != look(top).digest


def test_names_that_are_no_text(top: Path) -> None:
    (top / os.fsdecode(b"\xff\n")).write_text("")
    assert list(names(look(top))) == [os.fsdecode(b"\xff\n")]


def test_round_trip_of_nodes() -> None:
    entries = [Entry(FILE, b"a", 5, digest_of(b"1")), Entry(LINK, b"b", 0, b"../x"), Entry(DIRECTORY, b"\xff", 0, digest_of(b"2"))]
    assert parse_node(pack_node(entries[::-1])) == entries
    assert parse_node(b"") == []


@pytest.mark.parametrize(
    "node",
    [
        *(pack_node([Entry(FILE, name, 1, bytes(20))]) for name in (b"", b".", b"..", b"a/b", b"/a")),
        *(pack_node([Entry(FILE, b"a", 1, bytes(20))])[:-n] for n in (1, 20, 28, 29)),
        pack_node([Entry(LINK, b"a", 0, b"")]),
        b"qa\0" + bytes(28),
        pack_node([Entry(FILE, b"a", 1, bytes(20)), Entry(FILE, b"a", 1, bytes(20))]),
        pack_node([Entry(FILE, b"b", 1, bytes(20))]) + pack_node([Entry(FILE, b"a", 1, bytes(20))]),
    ],
)
def test_malformed_nodes(node: bytes) -> None:
    with pytest.raises(MalformedTree):
        parse_node(node)


@pytest.mark.parametrize(
    ("directory", "target", "inside"),
    [(b"", b"a", True), (b"a/", b"../b", True), (b"a/", b"../../b", False), (b"", b"..", False), (b"", b"/a", False), (b"", b"...", True)],
)
def test_whether_links_stay(directory: bytes, target: bytes, inside: bool) -> None:
    assert stays_within(directory, target) is inside
