"""A host's copy of a directory: its new content, its kept files, and the interruptions that it survives."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import stat
from pathlib import Path

import pytest

from monarch._core.sync import mirror as workspace_mirror
from monarch._core.sync.mirror import Mirror
from monarch._core.sync.node import DIRECTORY, EXECUTABLE, FILE, LINK, Entry, MalformedTree, digest_of, pack_node
from monarch._core.sync.tree import Tree, scan


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


class Setting:
    """A source and a host."""

    def __init__(self, folder: Path) -> None:
        self.source = folder / "source"
        self.source.mkdir()
        self.workspace = folder / "workspace"
        self.workspace.mkdir()
        self.copy = self.workspace / "code"

    def fill(self, files: dict[str, str | None]) -> None:
        for name, text in files.items():
            path = self.source / name
            if text is None:
                path.unlink()
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)

    def mirror(self) -> Mirror:
        return Mirror(str(self.workspace), "code")

    def look(self) -> Tree:
        tree = scan(os.fsencode(self.source))
        tree.texts = {digest_of(p.read_bytes()): p.read_bytes() for p in self.source.rglob("*") if p.is_file()}
        return tree

    def sync(self) -> tuple[int, int]:
        """The numbers of directories and files that were sent."""
        mirror = self.mirror()
        try:
            return exchange(mirror, self.look())
        finally:
            mirror.close()

    def left(self) -> set[str]:
        """The files besides the trees."""
        home = self.workspace / ".monarch"
        return {str(p.relative_to(home)) for p in home.rglob("*") if p.relative_to(home).parts[1:2] not in (("a",), ("b",))}


def exchange(mirror: Mirror, tree: Tree) -> tuple[int, int]:
    directories = contents = 0
    nodes, files = mirror.commit(tree.digest)
    while nodes or files:
        while nodes:
            directories += len(nodes)
            mirror.receive_nodes([tree.nodes[d] for d in nodes])
            nodes, files = mirror.missing(tree.digest)
        found = tree.paths_of(files)
        contents += len(found)
        for digest in found:
            mirror.receive(digest, 0, tree.texts[digest], True)
        nodes, files = mirror.commit(tree.digest)
    return directories, contents


def content(top: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for path in sorted(top.rglob("*")):
        name = str(path.relative_to(top))
        if "__pycache__" in name:
            continue
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_dir():
            found[name] = "directory"
        else:
            found[name] = (path.read_bytes(), bool(path.stat().st_mode & stat.S_IXUSR))
    return found


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path)


def test_mirror_becomes_equal_to_its_source(setting: Setting) -> None:
    setting.fill({"a.py": "1", "d/b.py": "2", "d/e/run": "3", "x": ""})
    os.chmod(setting.source / "d/e/run", 0o755)
    (setting.source / "link").symlink_to("d/e/run")
    (setting.source / "empty").mkdir()
    assert setting.sync() == (4, 4)
    assert content(setting.copy) == content(setting.source)
    assert setting.copy.is_symlink()
    assert setting.sync() == (0, 0)
    setting.fill({"d/b.py": "changed", "new/c": "4", "x": None})
    os.chmod(setting.source / "d/e/run", 0o644)
    # A mode is no content.
    assert setting.sync() == (4, 2)
    assert content(setting.copy) == content(setting.source)
    assert setting.left() == {"code", "code/lock", "code/a.tree", "code/b.tree"}


def test_random_edits(setting: Setting) -> None:
    chosen = random.Random(7)
    names = [f"{a}{b}" for a in ("", "d/", "d/e/", "f/") for b in "abcde"]
    for _ in range(60):
        for _ in range(chosen.randint(0, 4)):
            path = setting.source / chosen.choice(names)
            make_room(setting.source, path)
            kind = chosen.random()
            if kind < 0.55:
                path.write_text(chosen.choice("xyz") * chosen.randint(0, 3))
                if chosen.random() < 0.3:
                    path.chmod(0o755)
            elif kind < 0.65:
                path.symlink_to(chosen.choice("abc"))
            elif kind < 0.75:
                (path / "sub").mkdir(parents=True)
                (path / "sub" / "s").write_text("s")
        if chosen.random() < 0.3 and setting.copy.exists():
            spoil(setting.copy, chosen)
        setting.sync()
        assert content(setting.copy) == content(setting.source)


def make_room(top: Path, path: Path) -> None:
    """Makes the directories above a path, and removes the path."""
    for above in reversed(path.relative_to(top).parents):
        directory = top / above
        if directory.is_symlink() or directory.is_file():
            directory.unlink()
        directory.mkdir(exist_ok=True)
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.is_dir():
        shutil.rmtree(path)


def spoil(top: Path, chosen: random.Random) -> None:
    """Changes files as a person on the host would, by hand."""
    for path in sorted(top.rglob("*")):
        if path.is_symlink() or not path.exists() or chosen.random() > 0.3:
            continue
        if path.is_dir():
            (path / "stray").write_text("stray")
        elif chosen.random() < 0.5:
            with path.open("a") as f:
                f.write("by hand")
        else:
            path.unlink()


def test_known_content_is_not_sent_again(setting: Setting) -> None:
    setting.fill({"a": "1", "d/b": "2", "d/c": "3"})
    setting.sync()
    os.rename(setting.source / "d", setting.source / "renamed")
    (setting.source / "copy").write_text("1")
    assert setting.sync() == (1, 0)
    assert content(setting.copy) == content(setting.source)


def test_unchanged_files_stay_the_files_they_are(setting: Setting) -> None:
    setting.fill({"a": "1", "d/b": "2"})
    setting.sync()
    before = os.stat(setting.copy / "d/b")
    setting.fill({"a": "changed"})
    for _ in range(3):
        setting.sync()
        after = os.stat(setting.copy / "d/b")
        assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_open_files_and_the_tree_before_stay_readable(setting: Setting) -> None:
    setting.fill({"a": "1", "b": "1"})
    setting.sync()
    with (setting.copy / "a").open() as f:
        old = setting.copy.resolve()
        setting.fill({"a": "2", "b": None})
        setting.sync()
        assert (old / "b").read_text() == "1"
        setting.fill({"a": "3"})
        setting.sync()
        assert f.read() == "1"


def test_reader_sees_one_whole_tree(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test reads before every step that changes something."""
    setting.fill({f"d{i}/f{i}": "old" for i in range(5)})
    setting.sync()
    old = content(setting.copy)
    setting.fill({f"d{i}/f{i}": "new" for i in range(5)} | {"more": "new"})
    new = content(setting.source)
    seen: list[bool] = []
    for name in ("open", "link", "unlink", "mkdir", "rename", "symlink", "utime"):
        original = getattr(os, name)

        def watched(*args: object, original: object = original, **kwargs: object) -> object:
            now = content(setting.copy)
            assert now in (old, new)
            seen.append(now == new)
            result = original(*args, **kwargs)  # type: ignore[operator]
            assert content(setting.copy) in (old, new)
            return result

        monkeypatch.setattr(workspace_mirror.os, name, watched)
    setting.sync()
    monkeypatch.undo()
    assert len(seen) > 10 and content(setting.copy) == new


def test_killed_anywhere(tmp_path: Path) -> None:
    """SIGKILL before each system call of a sync: the old tree or the new one is there, and the next sync works."""
    switched = 0
    for step in range(200):
        folder = tmp_path / str(step)
        folder.mkdir()
        setting = Setting(folder)
        setting.fill({f"d{i}/f{i}": "old" for i in range(5)})
        setting.sync()
        setting.fill({f"d{i}/f{i}": "middle" for i in range(3)})
        setting.sync()
        middle = content(setting.copy)
        setting.fill({f"d{i}/f{i}": "new" for i in range(4)} | {"more": "new"})
        new = content(setting.source)
        if not killed_at(setting, step):
            break
        assert content(setting.copy) in (middle, new)
        switched += content(setting.copy) == new
        setting.sync()
        assert content(setting.copy) == new
        assert setting.left() <= {"code", "code/lock", "code/a.tree", "code/b.tree"}
        # The record of the next sync is true: a file that was changed by hand is found.
        (setting.copy / "d4/f4").write_text("by hand")
        setting.sync()
        assert content(setting.copy) == new
    assert step > 20 and switched


def killed_at(setting: Setting, step: int) -> bool:
    """Syncs in a child that kills itself before this system call; False if the sync ended before."""
    tree, mirror = setting.look(), setting.mirror()
    child = os.fork()
    if not child:
        count = 0

        def counted(original: object) -> object:
            def call(*args: object, **kwargs: object) -> object:
                nonlocal count
                count += 1
                if count > step:
                    os.kill(os.getpid(), signal.SIGKILL)
                return original(*args, **kwargs)  # type: ignore[operator]

            return call

        for name in ("open", "link", "unlink", "mkdir", "rename", "symlink", "write", "close"):
            setattr(os, name, counted(getattr(os, name)))
        try:
            exchange(mirror, tree)
        finally:
            os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    mirror.close()
    assert code in (0, -signal.SIGKILL)
    return code != 0


def test_tree_has_no_record_while_it_changes(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("1", "2"):
        setting.fill({"a": text})
        setting.sync()
    home = setting.workspace / ".monarch/code"
    found: dict[bytes, set[str]] = {}
    original = os.symlink

    def linked(target: bytes, place: bytes) -> None:
        found[os.path.basename(place)] = {path.name for path in home.glob("*.tree")}
        original(target, place)

    (setting.source / "new").symlink_to("a")
    used = setting.copy.resolve().name
    monkeypatch.setattr(os, "symlink", linked)
    setting.sync()
    # The record is there again before the link of the workspace is replaced.
    assert found == {b"new": {f"{used}.tree"}, b"link": {"a.tree", "b.tree"}}


def test_changes_by_hand_are_put_right(setting: Setting) -> None:
    setting.fill({"a.py": "1", "d/b.py": "2", "d/e/c.py": "3"})
    setting.sync()
    setting.fill({"a.py": "new"})
    setting.sync()
    with (setting.copy / "d/b.py").open("r+") as f:
        f.write("X")
    (setting.copy / "d/e/c.py").unlink()
    (setting.copy / "d/stray").mkdir()
    # The removed content is still in the tree that was in use before.
    assert setting.sync()[1] == 1
    assert content(setting.copy) == content(setting.source)
    shutil.rmtree(setting.copy.resolve())
    setting.sync()
    assert content(setting.copy) == content(setting.source)


def test_base_changed_during_a_sync(setting: Setting) -> None:
    """The receiver has looked at its trees; then a file that it is about to link is changed, and another one goes."""
    setting.fill({"a": "1", "d/b": "2", "c": "3"})
    setting.sync()
    os.rename(setting.source / "a", setting.source / "moved")
    setting.fill({"d/new": "new"})
    mirror, tree = setting.mirror(), setting.look()
    (setting.copy / "a").write_text("by hand")
    (setting.copy / "c").unlink()
    assert exchange(mirror, tree) == (2, 3)
    assert content(setting.copy) == content(setting.source)
    mirror.close()


def test_base_that_keeps_changing_is_an_error(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    setting.fill({"a": "1", "d/b": "2"})
    setting.sync()
    setting.fill({"a": "changed"})
    original = workspace_mirror.list_directories

    def changed_before(paths: list[bytes]) -> list[bytes | OSError]:
        with open(os.path.join(paths[0], b"a"), "w") as file:
            file.write("by hand")
        return original(paths)

    monkeypatch.setattr(workspace_mirror, "list_directories", changed_before)
    with pytest.raises(RuntimeError, match=r"/a was changed by another program during the sync"):
        setting.sync()
    assert (setting.copy / "a").read_text() == "1"
    monkeypatch.undo()
    setting.sync()
    assert content(setting.copy) == content(setting.source)


def test_compiled_code_stays_with_its_source(setting: Setting) -> None:
    setting.fill({"a.py": "1", "b.py": "1"})
    setting.sync()
    for name in ("a", "b"):
        caches = setting.copy / "__pycache__"
        caches.mkdir(exist_ok=True)
        (caches / f"{name}.cpython-311.pyc").write_text("compiled")
    for text in ("2", "3"):
        before = os.stat(setting.copy / "a.py").st_mtime_ns // 10**9
        setting.fill({"a.py": text})
        setting.sync()
        # The size is the same, and the second may be: Python would not notice the change.
        assert os.stat(setting.copy / "a.py").st_mtime_ns // 10**9 != before
    # The tree that was in use at first is in use again.
    assert [p.name for p in (setting.copy / "__pycache__").iterdir()] == ["b.cpython-311.pyc"]


def test_concurrent_syncs_keep_shared_content(setting: Setting) -> None:
    """The second sync began when the first had not switched yet, and needs content that the first has replaced."""
    setting.fill({"a": "1", "d/b": "2"})
    setting.sync()
    first, second = setting.mirror(), setting.mirror()
    setting.fill({"a": "first", "d/b": "first"})
    tree = setting.look()
    setting.fill({"a": "1", "d/b": "second"})
    other = setting.look()
    exchange(first, tree)
    assert (setting.copy / "a").read_text() == "first"
    exchange(second, other)
    assert content(setting.copy) == content(setting.source)
    exchange(first, tree)
    assert (setting.copy / "d/b").read_text() == "first"
    first.close()
    second.close()


def test_without_hard_links_and_unnamed_files(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(errno.EPERM, "not permitted")

    original = os.open
    monkeypatch.setattr(workspace_mirror.os, "link", refuse)
    monkeypatch.setattr(workspace_mirror.os, "O_TMPFILE", 1 << 30)
    monkeypatch.setattr(
        workspace_mirror.os, "open", lambda path, flags, *mode: refuse() if flags & (1 << 30) else original(path, flags, *mode)
    )
    setting.fill({"a": "1", "d/b": "2"})
    for text in ("2", "3", "4"):
        setting.sync()
        setting.fill({"a": text})
    assert (setting.copy / "d/b").read_text() == "2"
    assert setting.left() == {"code", "code/lock", "code/a.tree", "code/b.tree"}


def test_foreign_directory_is_not_replaced(setting: Setting, tmp_path: Path) -> None:
    setting.copy.mkdir()
    with pytest.raises(FileExistsError, match="code is there and was not made by sync_workspace: move it away"):
        setting.mirror()
    setting.copy.rmdir()
    setting.copy.symlink_to(tmp_path)
    with pytest.raises(FileExistsError, match="is a link that was not made by sync_workspace"):
        setting.mirror()


def test_places_below_directories(setting: Setting) -> None:
    setting.fill({"a": "1"})
    for place in ("deep/er/x", "deep%2Fer", "deep/er%2Fx"):
        mirror = Mirror(str(setting.workspace), place)
        exchange(mirror, setting.look())
        mirror.close()
        assert (setting.workspace / place / "a").read_text() == "1"
    assert len(list((setting.workspace / ".monarch").iterdir())) == 3


def test_large_files_in_parts(setting: Setting) -> None:
    setting.fill({"big": "0123456789"})
    tree, mirror = setting.look(), setting.mirror()
    digest = digest_of(b"0123456789")
    mirror.receive_nodes([tree.nodes[tree.digest]])
    mirror.receive(digest, 0, b"0123", False)
    mirror.receive(digest, 0, b"0123", False)  # the sender has begun again
    with pytest.raises(MalformedTree, match="a part at 5 does not follow"):
        mirror.receive(digest, 5, b"5", False)
    mirror.receive(digest, 4, b"456789", True)
    assert mirror.commit(tree.digest) == ([], [])
    assert (setting.copy / "big").read_text() == "0123456789"
    mirror.close()


def test_wrong_bytes_are_refused(setting: Setting) -> None:
    """A sender may claim any digest: what it sends under it is no content until it has been verified."""
    setting.fill({"a": "true", "b": "other"})
    tree, mirror = setting.look(), setting.mirror()
    mirror.receive_nodes([tree.nodes[tree.digest]])
    digest, other = digest_of(b"true"), digest_of(b"other")
    for parts in (
        [(digest, 0, b"fake", True)],
        [(digest, 0, b"tr", False), (digest, 2, b"ap", True)],
        [(digest, 0, b"true", False), (other, 4, b"", True)],
        [(digest, 4, b"true", True)],
        [(digest, 0, b"tr", False), (other, 0, b"other", True), (digest, 2, b"ue", True)],
    ):
        with pytest.raises(MalformedTree, match=r"not what its digest says|does not follow"):
            for part in parts:
                mirror.receive(*part)
        assert digest in mirror.commit(tree.digest)[1] and not setting.copy.exists()
    mirror.receive(digest, 0, b"true", True)
    assert mirror.commit(tree.digest) == ([], [])
    assert content(setting.copy) == content(setting.source)
    mirror.close()


@pytest.mark.parametrize(
    "entries",
    [
        [Entry(LINK, b"l", 0, b"/etc/passwd")],
        [Entry(LINK, b"l", 0, b"../outside")],
        [Entry(DIRECTORY, b"d", 0, digest_of(pack_node([Entry(LINK, b"l", 0, b"../../x")])))],
    ],
)
def test_links_that_lead_out_are_refused(setting: Setting, entries: list[Entry]) -> None:
    mirror = setting.mirror()
    inner = pack_node([Entry(LINK, b"l", 0, b"../../x")])
    node = pack_node(entries)
    mirror.receive_nodes([node, inner])
    with pytest.raises(MalformedTree, match="leads out of the tree"):
        mirror.commit(digest_of(node))
    assert not setting.copy.exists()
    mirror.close()


@pytest.mark.parametrize("name", [b"..", b"a/../../x", b"/etc/x", b"."])
def test_names_that_lead_out_are_refused(setting: Setting, name: bytes) -> None:
    mirror = setting.mirror()
    with pytest.raises(MalformedTree, match="invalid name"):
        mirror.receive_nodes([pack_node([Entry(FILE, name, 1, digest_of(b"x"))])])
    mirror.close()


def test_unrequested_content_is_not_written(setting: Setting) -> None:
    mirror = setting.mirror()
    node = pack_node([Entry(EXECUTABLE, b"a", 1, digest_of(b"x"))])
    mirror.receive_nodes([node])
    for data in (b"x", b"contents of another file"):
        mirror.receive(digest_of(data), 0, data, True)
    assert mirror.commit(digest_of(node)) == ([], [])
    assert content(setting.copy) == {"a": (b"x", True)}
    mirror.close()
