"""The inode table and differences of two tables: what goes in comes out, and malformed bytes are refused."""

from __future__ import annotations

import pytest
from fs_table_builder import build_table
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch.fs._tree.difference import difference, patched
from monarch.fs._tree.node import PIECE_BYTES, ZERO_ID, Kind, Node
from monarch.fs._tree.packed import pack
from monarch.fs._tree.table import Table, TableError

_NAMES = st.binary(min_size=1, max_size=6).filter(lambda name: name not in (b".", b"..") and not set(name) & {0, 47})
_IDS = st.sampled_from([ZERO_ID, b"a" * 32, b"b" * 32, bytes(range(32))])
_XATTRS = st.sampled_from([(), ((b"user.a", b"1"),), ((b"user.a", b""), (b"user.b", b"x" * 300))])


@st.composite
def _leaves(draw: st.DrawFn) -> Node:
    numbers = (draw(st.integers(0, 0o7777)), draw(st.integers(0, 9)), draw(st.integers(0, 2**32 - 1)))
    mtime = draw(st.integers(-(2**63), 2**63 - 1))
    if draw(st.booleans()):
        target = draw(st.binary(min_size=1, max_size=9).filter(lambda text: 0 not in text))
        return Node(Kind.SYMLINK, *numbers, len(target), mtime, target=target)
    count = draw(st.integers(0, 3))
    size = (0, 5, 2 << 20, (2 << 20) + 1)[count]
    readable = draw(st.booleans())
    chunks = b"".join(draw(_IDS) for _ in range(count)) if readable else b""
    return Node(Kind.FILE, *numbers, size, mtime, 1, draw(st.integers(0, 99)), b"", chunks, readable, draw(_XATTRS))


@st.composite
def _trees(draw: st.DrawFn) -> dict[bytes, Node | bytes]:
    root = Node(Kind.DIRECTORY, 0o755, 1, 2, 0, 3, xattrs=draw(_XATTRS))
    tree: dict[bytes, Node | bytes] = {b"": root}
    directories = [b""]
    for name in draw(st.lists(_NAMES, max_size=12)):
        above = draw(st.sampled_from(directories))
        path = above + b"/" + name if above else name
        if path in tree:
            continue
        what = draw(st.integers(0, 4))
        files = [p for p, node in tree.items() if isinstance(node, Node) and node.kind == Kind.FILE]
        if what == 0:
            directories.append(path)
            tree[path] = root._replace(mtime_ns=draw(st.integers(0, 5)))
        elif what == 1 and files:
            tree[path] = draw(st.sampled_from(files))
        else:
            tree[path] = draw(_leaves())
    return tree


def _model(tree: dict[bytes, Node | bytes]) -> dict[bytes, Node]:
    targets = [node if isinstance(node, bytes) else path for path, node in tree.items()]
    found: dict[bytes, Node] = {}
    for path, target in zip(tree, targets, strict=True):
        node = tree[target]
        assert isinstance(node, Node)
        found[path] = node._replace(nlink=targets.count(target))
    return found


@settings(max_examples=150, deadline=None)
@given(_trees())
def test_table_shows_the_nodes_it_was_made_of(tree: dict[bytes, Node | bytes]) -> None:
    made = build_table(tree)
    model = _model(tree)
    assert {path: made.node(index) for path, index in made.walk()} == model
    assert len(made) == sum(isinstance(node, Node) for node in tree.values())
    for path, index in made.walk():
        assert made.resolve(path) == index
        target = tree[path]
        if isinstance(target, bytes):
            assert made.resolve(target) == index
    assert made.find(0, b"no such name") is None
    own = [node for node in tree.values() if isinstance(node, Node)]
    assert made.total_bytes() == sum(node.size for node in own)
    ids = {node.chunk(number) for node in own for number in range(node.chunk_count())}
    assert made.chunk_ids() == ids - {ZERO_ID}


@settings(max_examples=100, deadline=None)
@given(_trees())
def test_decoded_table_is_the_encoded_one(tree: dict[bytes, Node | bytes]) -> None:
    made = build_table(tree)
    again = Table.decode(made.encode())
    assert again.generation == made.generation
    assert [again.node(index) for index in range(len(again))] == [made.node(index) for index in range(len(made))]
    assert list(again.walk()) == list(made.walk())
    assert again.encode() == made.encode()


@settings(max_examples=200, deadline=None)
@given(_trees(), _trees())
def test_difference_makes_new_table_of_old(one: dict[bytes, Node | bytes], two: dict[bytes, Node | bytes]) -> None:
    old, new = build_table(one), build_table(two)
    made = patched(old, difference(old, new))
    assert made.generation == new.generation
    assert {path: made.node(index) for path, index in made.walk()} == _model(two)
    assert (old.generation == new.generation) == (_model(one) == _model(two) and list(old.walk()) == list(new.walk()))


def _file(number: int = 0, **other: object) -> Node:
    return Node(Kind.FILE, 0o644, 0, 0, 5, 7, chunks=bytes([number + 1]) * 32)._replace(**other)


_ROOT = Node(Kind.DIRECTORY, 0o755, 0, 0, 0, 1)


def test_digest_covers_what_lies_below() -> None:
    tree = {b"": _ROOT, b"a": _ROOT, b"a/b": _ROOT, b"a/b/file": _file(), b"c": _ROOT}
    one, two = build_table(tree), build_table(tree | {b"a/b/file": _file(1)})
    for path, same in ((b"", False), (b"a", False), (b"a/b", False), (b"a/b/file", False), (b"c", True)):
        numbers = one.resolve(path), two.resolve(path)
        assert numbers[0] is not None and numbers[1] is not None
        assert (one.digest(numbers[0]) == two.digest(numbers[1])) is same, path


def test_renamed_directory_costs_few_bytes() -> None:
    nodes: dict[bytes, Node | bytes] = {b"": _ROOT, b"old": _ROOT}
    ids = [bytes([number % 251, number // 251]) * 16 for number in range(2000)]
    files = {b"f%d" % number: _file(chunks=id) for number, id in enumerate(ids)}
    old = build_table(nodes | {b"old/" + name: node for name, node in files.items()})
    new = build_table({b"": _ROOT, b"new": _ROOT} | {b"new/" + name: node for name, node in files.items()})
    delta = difference(old, new)
    assert len(delta) < 1000 < len(new.encode())
    assert patched(old, delta) == new


def test_difference_of_another_table_is_refused() -> None:
    old, new = build_table({b"": _ROOT}), build_table({b"": _ROOT, b"a": _file()})
    with pytest.raises(TableError, match="difference is one from"):
        patched(new, difference(old, new))


@pytest.mark.parametrize(
    "tree",
    [
        {b"": _ROOT, b"a/b": _file()},
        {b"": _ROOT, b"a": _file(chunks=b"short")},
        {b"": _ROOT, b"a": b"b"},
        {b"": _ROOT, b"n" * 256: _file()},
        {b"": _ROOT, b"..": _file()},
        {b"": _ROOT, b"a": _file(), b"a/b": _file()},
        {b"a": _file()},
    ],
)
def test_builder_refuses_what_no_tree_has(tree: dict[bytes, Node | bytes]) -> None:
    with pytest.raises(TableError):
        build_table(tree)


def test_decoder_refuses_bytes_that_grow_without_bound() -> None:
    import zstandard

    bomb = zstandard.ZstdCompressor().compress(bytes(80 << 20))
    head = b"MFT1" + b"\x01" + (80 << 20).to_bytes(8, "little") + len(bomb).to_bytes(8, "little")
    with pytest.raises(TableError, match="refused"):
        Table.decode(head + bomb)
    lying = b"MFT1" + b"\x01" + (10).to_bytes(8, "little") + len(bomb).to_bytes(8, "little")
    with pytest.raises(TableError, match="size"):
        Table.decode(lying + bomb)


def test_index_that_is_not_there_is_refused() -> None:
    table = build_table({b"": _ROOT, b"a": _file()})
    for index in (-1, 2):
        with pytest.raises(IndexError):
            table.node(index)


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=400))
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    old = build_table({b"": _ROOT, b"a": _file()})
    for body in (data, b"MFT1" + pack(data), b"MFT1" + data):
        with pytest.raises(TableError):
            Table.decode(body)
    for body in (data, b"MFD1" + pack(data) + pack(b""), b"MFD1" + data):
        with pytest.raises(TableError):
            patched(old, body)


def test_chunks_have_the_bytes_of_their_pieces() -> None:
    small, big, last = (bytes([n]) * 32 for n in (1, 2, 3))
    nodes = {
        b"": Node(Kind.DIRECTORY, 0o755, 0, 0, 0, 1),
        b"a": Node(Kind.FILE, 0o644, 0, 0, 10, 1, chunks=small),
        b"b": Node(Kind.FILE, 0o644, 0, 0, 2 * PIECE_BYTES + 5, 1, chunks=big + ZERO_ID + last),
        b"c": Node(Kind.FILE, 0o644, 0, 0, 10, 1, chunks=small),
        b"d": Node(Kind.FILE, 0o644, 0, 0, 10, 1, readable=False),
    }
    table = build_table(nodes)
    assert table.chunk_sizes() == {small: 10, big: PIECE_BYTES, last: 5}
    assert set(table.chunk_sizes()) == table.chunk_ids()


def test_unreadable_file_has_no_chunks() -> None:
    xattrs = ((b"user.long", bytes(64)),)
    nodes: dict[bytes, Node | bytes] = {
        b"": Node(Kind.DIRECTORY, 0o755, 0, 0, 0, 0),
        b"large": Node(Kind.FILE, 0, 0, 0, 5 << 20, 0, readable=False, xattrs=xattrs),
        b"small": Node(Kind.FILE, 0, 0, 0, 5, 0, readable=False, xattrs=xattrs),
        b"whole": Node(Kind.FILE, 0o644, 0, 0, 5, 0, chunks=b"w" * 32, xattrs=xattrs),
    }
    table = build_table(nodes)
    assert table.chunk_ids() == set(table.chunk_sizes()) == {b"w" * 32}
    assert table.large_chunk_ids() == set() and table.small_chunk_ids() == [b"w" * 32]
    assert table.chunk_places({b"w" * 32, bytes(64)[:32]})[0] == [(3, 0, b"w" * 32)]


def test_nodes_are_found_by_their_chunks() -> None:
    ids = [bytes([number]) * 32 for number in range(100)]
    nodes: dict[bytes, Node | bytes] = {b"": Node(Kind.DIRECTORY, 0o755, 0, 0, 0, 0)}
    for folder in (b"a", b"b"):
        nodes[folder] = Node(Kind.DIRECTORY, 0o755, 0, 0, 0, 0)
    for number, id in enumerate(ids):
        nodes[b"%c/f%02d" % (b"ab"[number % 2], number)] = Node(Kind.FILE, 0o644, 0, 0, 5, 0, chunks=id)
    nodes[b"b/large"] = Node(Kind.FILE, 0o644, 0, 0, (1 << 20) + 1, 0, chunks=ids[3] + ids[4])
    nodes[b"b/second"] = b"b/large"
    table = build_table(nodes)

    def found(wanted: list[bytes]) -> set[bytes]:
        places, _ = table.chunk_places(wanted)
        indices = {index for index, _, _ in places}
        assert all(table.node(index).chunk(offset // PIECE_BYTES) == id for index, offset, id in places)
        return {path for path, index in table.walk() if index in indices}

    assert found([ids[3]]) == {b"b/f03", b"b/large", b"b/second"}
    # One place of each chunk is enough.
    assert found([ids[4]]) == {b"a/f04"}
    # Bytes across two adjacent chunks are no chunk.
    assert found([ids[3][16:] + ids[4][:16]]) == set()
    assert found(ids) == {path for path, node in nodes.items() if isinstance(node, bytes) or node.kind is Kind.FILE}
    assert found([]) == set()


def test_search_for_chunks_continues_from_its_last_end() -> None:
    nodes = {b"": Node(Kind.DIRECTORY, 0o755, 0, 0, 0, 0)}
    ids = [bytes([1, number]) * 16 for number in range(100)]
    for number, id in enumerate(ids):
        folder = b"d%02d" % (number // 10)
        nodes[folder] = Node(Kind.DIRECTORY, 0o755, 0, 0, 0, 0)
        nodes[folder + b"/f%d" % (number % 10)] = Node(Kind.FILE, 0o644, 0, 0, 5, 0, chunks=id)
    table = build_table(nodes)
    start, folders = 0, list[int]()
    for at in range(0, 100, 5):
        found, start = table.chunk_places(ids[at : at + 5], start)
        assert sorted(id for _, _, id in found) == ids[at : at + 5]
        folders.append(start)
    assert folders == sorted(folders) and len(set(folders)) == 10
    # From the end the search starts again; unknown chunks end it too.
    assert [id for _, _, id in table.chunk_places([ids[0]], start)[0]] == [ids[0]]
    assert table.chunk_places([b"\2" * 32], start)[0] == []
