"""Which paths and chunks differ between two tables."""

from __future__ import annotations

from fs_table_builder import build_table

from monarch.fs._tree.changed import changed_paths, new_chunks
from monarch.fs._tree.node import ZERO_ID, Kind, Node


def directory() -> Node:
    return Node(Kind.DIRECTORY, 0o755, 0, 0, 0, 1)


def file(letter: bytes) -> Node:
    return Node(Kind.FILE, 0o644, 0, 0, 1, 1, chunks=letter * 32)


def test_new_gone_and_different_paths_are_found_once() -> None:
    old = build_table(
        {b"": directory(), b"d": directory(), b"d/a": file(b"a"), b"d/b": file(b"b"), b"same": directory(), b"same/x": file(b"x")}
    )
    new = build_table(
        {
            b"": directory(),
            b"d": directory(),
            b"d/a": file(b"c"),
            b"n": directory(),
            b"n/y": file(b"y"),
            b"same": directory(),
            b"same/x": file(b"x"),
        }
    )
    assert sorted(changed_paths(old, new)) == [b"d/a", b"d/b", b"n", b"n/y"]
    assert sorted(changed_paths(new, old)) == [b"d/a", b"d/b", b"n", b"n/y"]
    assert sorted(new_chunks(old, new)) == [b"c" * 32, b"y" * 32]
    assert list(changed_paths(new, new)) == []


def test_directory_replaced_by_a_file_is_changed() -> None:
    old = build_table({b"": directory(), b"p": directory(), b"p/q": file(b"q")})
    new = build_table({b"": directory(), b"p": file(b"\0"), b"r": file(b"r")})
    assert sorted(changed_paths(old, new)) == [b"p", b"r"]
    assert ZERO_ID not in new_chunks(old, new) and new_chunks(old, new) == [b"r" * 32]
