"""The index of a real directory: each node equals what the system shows, contents are served and verified, errors name the culprit."""

from __future__ import annotations

import marshal
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch.extension.directory_tree import blake3, save_cached
from monarch.fs._index.content import Content, read_contents
from monarch.fs._index.index import Index, ReadFailure, Scan
from monarch.fs._index.pattern import Exclusion
from monarch.fs._index.scan import Look
from monarch.fs._tree.node import PIECE_BYTES, ZERO_ID, Kind, Node
from monarch.fs._tree.table import Table

_PYC = f".{sys.implementation.cache_tag}.pyc"


def _index(source: Path, cache: Path, **options: object) -> Index:
    return Index(str(source), cache=cache, **{"pyc": "as-is", **options})  # pyright: ignore[reportArgumentType]


def _node(table: Table, path: str) -> Node:
    index = table.resolve(os.fsencode(path))
    assert index is not None, path
    return table.node(index)


def _content(index: Index, node: Node) -> bytes:
    parts: list[bytes] = []
    for number in range(node.chunk_count()):
        size = min(node.piece(), node.size - number * node.piece())
        found = bytes(size) if node.chunk(number) == ZERO_ID else index.read([node.chunk(number)])[0]
        assert isinstance(found, bytes), found
        parts.append(found)
    return b"".join(parts)


def _verify(index: Index, scan: Scan, source: Path) -> None:
    """Everything in the table equals everything in the directory."""
    top = os.fsencode(source)
    there = {b""}
    for directory, directories, files in os.walk(top):
        there.update(os.path.relpath(os.path.join(directory, name), top) for name in directories + files)
    nodes = dict(scan.table.walk())
    assert set(nodes) == there
    inodes: dict[int, set[int]] = {}
    for path, number in nodes.items():
        node, found = scan.table.node(number), os.lstat(os.path.join(top, path))
        assert (node.mode, node.uid, node.gid, node.mtime_ns) == (
            stat.S_IMODE(found.st_mode),
            found.st_uid,
            found.st_gid,
            found.st_mtime_ns,
        )
        inodes.setdefault(found.st_ino, set()).add(number)
        if stat.S_ISDIR(found.st_mode):
            assert node.kind == Kind.DIRECTORY
            continue
        assert (node.size, node.nlink, node.blocks) == (found.st_size, found.st_nlink, found.st_blocks), path
        if stat.S_ISLNK(found.st_mode):
            assert node.target == os.readlink(os.path.join(top, path))
        else:
            assert _content(index, node) == Path(os.fsdecode(os.path.join(top, path))).read_bytes()
    assert all(len(numbers) == 1 for numbers in inodes.values())


_NAMES = st.sampled_from(["a", "b", "c", "d"])
_EDITS = st.lists(st.tuples(st.integers(0, 7), _NAMES, _NAMES, st.binary(max_size=3)), max_size=10)


def _edit(top: Path, edits: list[tuple[int, str, str, bytes]]) -> None:
    for what, name, other, data in edits:
        path, second = top / name, top / "sub" / other
        try:
            second.parent.mkdir(exist_ok=True)
            if what == 0:
                path.write_bytes(data * 5)
            elif what == 1:
                second.mkdir()
            elif what == 2:
                os.link(path, second)
            elif what == 3:
                path.rename(second)
            elif what == 4:
                path.symlink_to(other)
            elif what == 5:
                path.unlink()
            elif what == 6:
                second.chmod(0o600 + len(data))
            else:
                # The same size and time with other bytes.
                before = os.stat(path)
                path.write_bytes(bytes(byte ^ 1 for byte in path.read_bytes()))
                os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        except OSError:
            continue


@settings(max_examples=40, deadline=None)
@given(st.lists(_EDITS, min_size=1, max_size=4))
def test_tables_follow_the_directory(rounds: list[list[tuple[int, str, str, bytes]]]) -> None:
    with TemporaryDirectory() as folder:
        top, cache = Path(folder, "tree"), Path(folder, "cache")
        top.mkdir()
        index = _index(top, cache)
        for edits in rounds:
            _edit(top, edits)
            scan = index.scan()
            _verify(index, scan, top)
            # A process that starts with the cache file has the same result.
            assert _index(top, cache).scan().table == scan.table
            assert _index(top, Path(folder, "none")).scan().table == scan.table
            assert index.scan().table == scan.table


def test_every_byte_can_be_in_a_name(tmp_path: Path) -> None:
    top = os.fsencode(tmp_path / "tree")
    os.mkdir(top)
    names = [bytes([byte]) if byte != 46 else b"dot." for byte in range(1, 256) if byte != 47]
    for name in names:
        with open(top + b"/" + name, "wb") as file:
            file.write(name)
    index = _index(tmp_path / "tree", tmp_path / "cache")
    scan = index.scan()
    assert [name for name, _ in scan.table.children(0)] == sorted(names)
    _verify(index, scan, tmp_path / "tree")


def test_holes_cost_no_content(tmp_path: Path) -> None:
    top = tmp_path / "tree"
    top.mkdir()
    with open(top / "sparse", "wb") as file:
        file.truncate(1 << 40)
        file.seek(5 * PIECE_BYTES + 17)
        file.write(b"data")
    (top / "zeros").write_bytes(bytes(1000))
    (top / "large zeros").write_bytes(bytes(2 * PIECE_BYTES + 5))
    index = _index(top, tmp_path / "cache")
    table = index.scan().table
    node = _node(table, "sparse")
    assert node.size == 1 << 40 and node.blocks == os.stat(top / "sparse").st_blocks and node.chunk_count() == 1 << 20
    assert [number for number in range(10) if node.chunk(number) != ZERO_ID] == [5]
    assert table.chunk_ids() == {node.chunk(5)}
    [piece] = index.read([node.chunk(5)])
    assert piece == bytes(17) + b"data" + bytes(PIECE_BYTES - 21)
    assert _node(table, "zeros").chunks == ZERO_ID and _node(table, "large zeros").chunks == 3 * ZERO_ID


def test_special_files_are_counted_and_left_out(tmp_path: Path) -> None:
    top = tmp_path / "tree"
    (top / ".monarch").mkdir(parents=True)
    (top / ".monarch" / "secret").write_text("x")
    os.mkfifo(top / "fifo")
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(str(top / "socket"))
        scan = _index(top, tmp_path / "cache", exclude=()).scan()
    assert list(scan.table.walk()) == [(b"", 0)]
    assert [warning.partition(": ")[2] for warning in scan.warnings] == ["2 sockets, pipes or devices are left out"]


def test_user_attributes_are_kept(tmp_path: Path) -> None:
    top = tmp_path / "tree"
    (top / "directory").mkdir(parents=True)
    (top / "file").write_text("x")
    try:
        for path in (top, top / "directory", top / "file"):
            os.setxattr(path, "user.b", b"2")
            os.setxattr(path, "user.a", b"")
    except OSError as e:
        pytest.skip(f"the file system has no attributes of users: {e}")
    index = _index(top, tmp_path / "cache")
    table = index.scan().table
    assert {path: table.node(number).xattrs for path, number in table.walk()} == dict.fromkeys(
        (b"", b"directory", b"file"), ((b"user.a", b""), (b"user.b", b"2"))
    )
    # A change of the attributes of a directory is not in any listing.
    os.setxattr(top / "directory", "user.a", b"new")
    os.removexattr(top / "file", "user.b")
    table = index.scan().table
    assert _node(table, "directory").xattrs == ((b"user.a", b"new"), (b"user.b", b"2"))
    assert _node(table, "file").xattrs == ((b"user.a", b""),)


def test_changed_file_is_stale_and_never_other_bytes(tmp_path: Path) -> None:
    top = tmp_path / "tree"
    top.mkdir()
    for name in ("edited", "removed", "kept"):
        (top / name).write_text(name)
    index = _index(top, tmp_path / "cache")
    table = index.scan().table
    ids = [_node(table, name).chunks for name in ("edited", "removed", "kept")]
    (top / "edited").write_text("EDITED")
    (top / "removed").unlink()
    edited, removed, kept = index.read(ids)
    assert isinstance(edited, ReadFailure) and edited.stale and edited.paths == ["edited"]
    assert isinstance(removed, ReadFailure) and removed.stale and removed.paths == ["removed"]
    assert kept == b"kept"
    [unknown] = index.read([b"x" * 32])
    assert isinstance(unknown, ReadFailure) and not unknown.stale and not unknown.paths


def test_files_of_a_changed_kind_are_stale(tmp_path: Path) -> None:
    top = tmp_path / "tree"
    top.mkdir()
    names = ("directory", "pipe", "link", "socket", "below/file")
    (top / "below").mkdir()
    for name in names:
        (top / name).write_text(name)
    index = _index(top, tmp_path / "cache")
    table = index.scan().table
    for name in names:
        (top / name).unlink()
    (top / "directory").mkdir()
    os.mkfifo(top / "pipe")
    (top / "link").symlink_to("/etc/hostname")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(top / "socket"))
    (top / "below").rmdir()
    (top / "below").write_text("")
    for name, found in zip(names, index.read([_node(table, name).chunks for name in names]), strict=True):
        assert isinstance(found, ReadFailure) and found.stale and found.paths == [name], (name, found)


def test_times_out_of_range_are_clamped(tmp_path: Path) -> None:
    top = tmp_path / "tree"
    top.mkdir()
    expected: dict[str, int] = {}
    for seconds in (-1, -1_000_000_000, 9_000_000_000, 10_000_000_000, 15_000_000_000):
        name = f"at {seconds}"
        (top / name).write_text("x")
        os.utime(top / name, (seconds, seconds))
        expected[name] = min(os.stat(top / name).st_mtime_ns, (1 << 63) - 1)
    (top / "directory").mkdir()
    (top / "link").symlink_to("x")
    for name in ("directory", "link", "."):
        os.utime(top / name, (10_000_000_000, 10_000_000_000), follow_symlinks=False)
        expected[name] = (1 << 63) - 1
    index = _index(top, tmp_path / "cache")
    table = index.scan().table
    found = {name: (_node(table, name) if name != "." else table.node(0)).mtime_ns for name in expected}
    assert found == expected
    assert index.scan().table.generation == table.generation


def test_content_is_found_at_another_path(tmp_path: Path) -> None:
    top = tmp_path / "tree"
    top.mkdir()
    for name in ("one", "two"):
        (top / name).write_text("same")
    index = _index(top, tmp_path / "cache")
    index.scan()
    (top / "one").write_text("else")
    assert index.read([blake3(b"same")]) == [b"same"]
    index.scan()
    assert sorted(index.read([blake3(b"same"), blake3(b"else")])) == [b"else", b"same"]  # pyright: ignore[reportArgumentType]


def test_damaged_cache_is_ignored(tmp_path: Path) -> None:
    top = tmp_path / "tree"
    top.mkdir()
    (top / "file").write_text("text")
    expected = _index(top, tmp_path / "cache").scan().table
    [file] = (tmp_path / "cache" / "sources").iterdir()
    whole = file.read_bytes()
    assert save_cached(file, (99, None))
    other_version = file.read_bytes()
    # Another version of Python writes another format.
    body = marshal.dumps((99, None))
    for damaged in (b"", whole[:20], whole[:-1], whole[:40] + b"\xff" + whole[41:], other_version, blake3(body) + body):
        file.write_bytes(damaged)
        assert _index(top, tmp_path / "cache").scan().table == expected
    assert file.read_bytes() != damaged


def test_unchanged_files_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # No file is too young for the cache.
    monkeypatch.setattr(Look, "TICK_NS", -(1 << 40))
    read: list[bytes] = []

    def counting(paths: list[bytes], sizes: list[tuple[int, int]]) -> list[Content | OSError]:
        read.extend(os.path.basename(path) for path in paths)
        return read_contents(paths, sizes)

    monkeypatch.setattr("monarch.fs._index.scan.read_contents", counting)
    top = tmp_path / "tree"
    (top / "below").mkdir(parents=True)
    for name in ("one", "two", "below/three"):
        (top / name).write_text(name)
    index = _index(top, tmp_path / "cache")
    for change, expected in (
        (lambda: None, [b"one", b"three", b"two"]),
        (lambda: None, []),
        (lambda: (top / "one").write_text("new"), [b"one"]),
        (lambda: (top / "one").chmod(0o600), [b"one"]),
        (lambda: (top / "below").rename(top / "renamed"), []),
    ):
        change()
        read.clear()
        _verify(index, index.scan(), top)
        assert sorted(read) == expected
    read.clear()
    index.close()
    _verify(index, _index(top, tmp_path / "cache").scan(), top)
    assert not read


def test_rules_that_leave_out_their_own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Look, "TICK_NS", -(1 << 40))
    top = tmp_path / "tree"
    (top / "below").mkdir(parents=True)
    (top / ".git").mkdir()
    (top / "below" / ".gitignore").write_text(".gitignore\n*.log\n")
    for name in ("x.log", "y.py"):
        (top / "below" / name).write_text(name)
    index = _index(top, tmp_path / "cache", gitignore=True)
    # Later scans begin with the record of the first.
    for _ in range(3):
        assert [path for path, _ in index.scan().table.walk()] == [b"", b"below", b"below/y.py"]
    index.close()


@pytest.mark.parametrize("pattern", ["", "/", "/absolute", "a//b", "../a", "[", "a/[b", "[z-a]", "a\0"])
def test_malformed_pattern_is_named(pattern: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="pattern"):
        _index(tmp_path, tmp_path / "cache", exclude=(pattern,))


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("*.log", ["a.log", "x/a.log"], ["a.logs", "x/alog"]),
        ("data/", ["data/", "x/data/"], ["data"]),
        ("x/*.py", ["x/a.py"], ["a.py", "x/y/a.py", "z/x/a.py"]),
        ("x/**/b", ["x/b", "x/y/z/b"], ["x/bb", "b"]),
        ("x/**", ["x/a", "x/a/b"], ["x"]),
        ("[!a]?", ["bc"], ["ab", "b"]),
        ("[]x]", ["]", "x"], ["y"]),
        ("[a^]", ["^", "a"], ["b"]),
    ],
)
def test_patterns_match_as_documented(pattern: str, matching: list[str], other: list[str]) -> None:
    exclusion = Exclusion((pattern,))
    for path, expected in [(path, True) for path in matching] + [(path, False) for path in other]:
        raw = path.rstrip("/").encode()
        assert exclusion.matches(raw, raw.rpartition(b"/")[2], path.endswith("/")) is expected, path


def test_errors_name_the_source(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for source, error in (("file", NotADirectoryError), ("nothing", FileNotFoundError), ("file/below", NotADirectoryError)):
        with pytest.raises(error, match=source):
            _index(tmp_path / source, tmp_path / "cache").scan()
    (tmp_path / "removed").mkdir()
    index = _index(tmp_path / "removed", tmp_path / "cache")
    index.scan()
    (tmp_path / "removed").rmdir()
    with pytest.raises(FileNotFoundError) as caught:
        index.scan()
    assert caught.value.filename == str(tmp_path / "removed")
    for source in ("", "a\0b"):
        with pytest.raises(ValueError, match="source"):
            Index(source)
    with pytest.raises(ValueError, match="pyc"):
        _index(tmp_path, tmp_path / "cache", pyc="maybe")


_AS_ANOTHER_USER = """
import os, sys
from pathlib import Path
from monarch.fs._index.content import Content, read_contents
from monarch.fs._index.index import Index
os.setgid(65534); os.setgroups([]); os.setuid(65534)
scan = Index(sys.argv[1], pyc="as-is", cache=Path(sys.argv[2])).scan()
for path, index in scan.table.walk():
    print(path.decode(), scan.table.node(index).readable)
print(scan.warnings)
try:
    Index(sys.argv[1] + "/closed", pyc="as-is", cache=Path(sys.argv[2])).scan()
except PermissionError as e:
    print("refused", e.filename)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_unreadable_files_are_shown_and_named(tmp_path: Path) -> None:
    with TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        top = Path(folder, "tree")
        (top / "closed").mkdir(parents=True)
        (top / "closed" / "hidden").write_text("x")
        (top / "open").write_text("x")
        (top / "secret").write_text("x")
        os.chmod(top / "closed", 0)
        os.chmod(top / "secret", 0)
        command = [sys.executable, "-c", _AS_ANOTHER_USER, str(top), str(tmp_path / "none")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    lines = done.stdout.splitlines()
    assert lines[:4] == [" True", "closed False", "open True", "secret False"], done.stderr
    assert "2 files or directories cannot be read: secret, closed" in lines[4]
    assert lines[5].startswith("refused") and lines[5].endswith("closed")


def test_modules_without_bytecode_get_it(tmp_path: Path) -> None:
    top = tmp_path / "tree"
    (top / "package").mkdir(parents=True)
    (top / "package" / "module.py").write_text("value = 41 + 1\n")
    (top / "package" / "broken.py").write_text("def (:\n")
    index = _index(top, tmp_path / "cache", pyc="compile", compile_seconds=25.0)
    try:
        table = index.scan().table
        names = [name.decode() for name, _ in table.children(table.resolve(b"package/__pycache__") or 0)]
        assert names == ["module" + _PYC]
        node = _node(table, f"package/__pycache__/module{_PYC}")
        made = _content(index, node)
        assert made[4:8] == b"\x01\0\0\0" and len(made) == node.size
        space: dict[str, int] = {}
        exec(marshal.loads(made[16:]), space)
        assert space["value"] == 42
        assert index.scan().table == table
        # The compiled module follows the source in the same table.
        (top / "package" / "module.py").write_text("value = 7\n")
        changed = index.scan().table
        exec(marshal.loads(_content(index, _node(changed, f"package/__pycache__/module{_PYC}"))[16:]), space)
        assert space["value"] == 7
    finally:
        index.close()
    again = _index(top, tmp_path / "cache", pyc="compile", compile_seconds=0)
    try:
        assert again.scan().table == changed
    finally:
        again.close()


def test_valid_bytecode_of_the_source_is_kept(tmp_path: Path) -> None:
    import py_compile

    top = tmp_path / "tree"
    top.mkdir()
    (top / "module.py").write_text("value = 1\n")
    compiled = Path(str(py_compile.compile(str(top / "module.py"), invalidation_mode=py_compile.PycInvalidationMode.TIMESTAMP)))
    index = _index(top, tmp_path / "cache", pyc="compile", compile_seconds=25.0)
    try:
        path = f"__pycache__/{compiled.name}"
        assert _content(index, _node(index.scan().table, path)) == compiled.read_bytes()
        # A later source makes it invalid.
        (top / "module.py").write_text("value = 22\n")
        made = _content(index, _node(index.scan().table, path))
        assert made != compiled.read_bytes() and made[4] == 1
    finally:
        index.close()


def test_few_contents_are_found_without_an_index(tmp_path: Path) -> None:
    source = tmp_path / "source"
    texts = {f"d{number % 3}/f{number}": b"text %d" % number for number in range(20)}
    for name, text in texts.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(text)
    index = Index(str(source), cache=tmp_path / "cache", pyc="as-is")
    index.scan()
    ids = {name: blake3(text) for name, text in texts.items()}
    assert index.read([ids["d1/f4"], ids["d0/f3"]]) == [texts["d1/f4"], texts["d0/f3"]]
    assert not index._located
    # The places in the last two scans, even if the file was moved.
    (source / "d1/f4").rename(source / "moved")
    (source / "d0/f3").unlink()
    index.scan()
    [moved, gone] = index.read([ids["d1/f4"], ids["d0/f3"]])
    assert moved == texts["d1/f4"] and isinstance(gone, ReadFailure) and gone.paths == ["d0/f3"] and not index._located
    assert index.read(list(ids.values()))[5:] == list(texts.values())[5:]
    assert index._located
    index.close()


def test_holes_of_a_sparse_file_are_no_places(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "small").write_bytes(b"small")
    with (source / "image").open("wb") as file:
        file.write(b"begin")
        file.seek(1 << 39)
        file.write(b"end")
    index = Index(str(source), cache=tmp_path / "cache", pyc="as-is")
    index.scan()
    assert index.read([blake3(b"small")]) == [b"small"]
    index._locate()
    assert len(index._places) == 3 and ZERO_ID not in index._places
    index.close()
