"""A host whose answers no file server gives: its own files fail with EIO, and nothing else does."""

from __future__ import annotations

import errno
import stat
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from monarch.fs._gather.gathered_tree import GatheredTree
from monarch.fs._gather.host_request import Answer, Body, decode, encode
from monarch.fs._kernel.failure import answer_errno
from monarch.fs._tree.operations import ROOT, Attr

T = TypeVar("T")
FILE = [stat.S_IFREG | 0o644, 10, 1, 1, 1, 1, 2]
FOLDER = [stat.S_IFDIR | 0o755, 10, 1, 1, 1, 1, 1]
SOUND: dict[str, Body] = {
    "attr": {"attr": FILE},
    "attrs": {"attrs": [FILE]},
    "hold": {"attr": FILE},
    "read": {"attr": FILE},
    "link": {"link": "x"},
    "list": {"entries": [["name", FILE]], "last": True, "after": "name"},
}
VALUES: list[Any] = [
    None,
    -1,
    2**70,
    1e300,
    "x",
    [],
    {},
    True,
    [1] * 7,
    [-1] * 7,
    [2**64] * 7,
    ["x"] * 7,
    "........",
    [FILE, FILE],
    {"errno": 5},
]


class Host:
    """Its answers are those that the test has set."""

    def __init__(self) -> None:
        self.answers = {operation: Answer(body, b"0123456789") for operation, body in SOUND.items()}

    def ask(self, host: int, body: Body, then: Callable[[Answer], object]) -> None:
        path = body["path"]
        found = Answer({"attr": FOLDER}) if body["op"] == "attr" and not path else self.answers[body["op"]]
        then(decode(encode(found.body, found.blob)))


def done(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that has nothing to wait for."""
    try:
        coroutine.send(None)
    except StopIteration as e:
        return e.value
    coroutine.close()
    raise AssertionError("it waits")


def view() -> tuple[Host, GatheredTree]:
    host = Host()
    return host, GatheredTree([""], host, 1 << 20, lambda names, inodes: None)


def attr_of(tree: GatheredTree) -> Attr:
    found = done(tree.lookup(ROOT, b"name")).attr
    assert found is not None
    return found


def used(tree: GatheredTree, inode: int) -> list[Callable[[], object]]:
    def listed() -> list[bytes]:
        names = [entry.name for entry in done(tree.readdir(ROOT, 0))]
        done(tree.lookup(ROOT, b"name"))
        return names

    return [
        lambda: done(tree.lookup(ROOT, b"name")),
        listed,
        lambda: done(tree.open(inode)),
        lambda: done(tree.read(inode, 0, 10)),
        lambda: done(tree.readlink(inode)),
    ]


def assert_bounded(tree: GatheredTree, inode: int) -> None:
    """Each operation has an answer, or an error that the kernel takes."""
    for operation in used(tree, inode):
        try:
            operation()
        except OSError as e:
            assert answer_errno("it", e) in errno.errorcode


@pytest.mark.parametrize("operation", SOUND)
@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_malformed_field_is_an_error_of_its_host(operation: str, value: Any) -> None:
    host, tree = view()
    inode = attr_of(tree).inode
    for field in SOUND[operation]:
        for body in (SOUND[operation] | {field: value}, {}):
            host.answers[operation] = Answer(body, b"0123456789")
            assert_bounded(tree, inode)


@pytest.mark.parametrize("number", ["5", 0, -5, 512, 5000, 2**70, None, [], {}, True], ids=repr)
def test_errno_that_no_error_has_is_eio(number: Any) -> None:
    host, tree = view()
    inode = attr_of(tree).inode
    host.answers["read"] = Answer({"errno": number, "reason": ["x"]})
    with pytest.raises(OSError) as caught:
        done(tree.read(inode, 0, 10))
    assert answer_errno("it", caught.value) in (errno.EIO, errno.EPERM)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../up", "a\0b", "n" * 256, 7, None], ids=repr)
def test_name_that_no_file_has_is_refused(name: Any) -> None:
    host, tree = view()
    host.answers["list"] = Answer({"entries": [[name, FILE]], "last": True, "after": ""})
    with pytest.raises(OSError, match="malformed"):
        done(tree.readdir(ROOT, 0))


def test_devices_of_a_host_are_not_listed() -> None:
    host, tree = view()
    host.answers["list"] = Answer({"entries": [["null", [stat.S_IFCHR | 0o666, *FILE[1:]]], ["name", FILE]], "last": True, "after": ""})
    assert [entry.name for entry in done(tree.readdir(ROOT, 0))] == [b"name"]


class Endless:
    """A directory of which each page has no name and is not the last."""

    def __init__(self) -> None:
        self.asked = 0

    def ask(self, host: int, body: Body, then: Callable[[Answer], object]) -> None:
        self.asked += 1
        then(Answer({"entries": [], "last": False, "after": str(self.asked)}))


def test_listing_without_an_end_is_an_error() -> None:
    tree = GatheredTree([""], Endless(), 1 << 20, lambda names, inodes: None)
    with pytest.raises(OSError, match="names"):
        done(tree.readdir(ROOT, 0))


def test_error_outside_the_kernels_range_is_eio() -> None:
    assert answer_errno("read", OSError(5000, "x")) == errno.EIO
