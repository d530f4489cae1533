"""No access leaves the root of a gathered tree, whatever its links are and become."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from monarch.fs._gather.confined_root import DANGLING, ConfinedRoot


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("secret")
    root = tmp_path / "root"
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "file").write_text("inside")
    return root


@pytest.fixture
def root(tree: Path) -> Iterator[ConfinedRoot]:
    found = ConfinedRoot(str(tree))
    yield found
    found.close()


def content(root: ConfinedRoot, path: bytes) -> bytes:
    descriptor = root.open(path)
    try:
        return os.read(descriptor, 100)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("path", [b"../outside/secret", b"a/../../outside/secret", b"/etc/passwd", b"a/b/../../../outside/secret", b"a\0b"])
def test_path_that_leads_out_is_absent(root: ConfinedRoot, path: bytes) -> None:
    for access in (root.open, root.attr, root.names, root.link):
        with pytest.raises(OSError) as caught:
            access(path)
        assert caught.value.errno == errno.ENOENT


@pytest.mark.parametrize("text", ["../outside", "a/../../outside", "{outside}", "/proc/self/root", "/proc/self/cwd", "/"])
def test_directory_link_that_leads_out_dangles(root: ConfinedRoot, tree: Path, text: str) -> None:
    os.symlink(text.format(outside=tree.parent / "outside"), tree / "link")
    with pytest.raises(OSError) as caught:
        root.open(b"link/secret")
    assert caught.value.errno in (errno.ENOENT, errno.ELOOP)
    assert root.link(b"link").startswith(DANGLING + b"/")


def test_magic_link_is_refused(tmp_path: Path) -> None:
    held = os.open(tmp_path, os.O_RDONLY)
    root = ConfinedRoot("/proc/self/fd")
    try:
        with pytest.raises(OSError) as caught:
            root.names(b"%d/." % held)
        assert caught.value.errno in (errno.ELOOP, errno.ENOENT)
    finally:
        root.close()
        os.close(held)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("file", b"file"),
        ("../a/file", b"file"),
        ("b", b"b"),
        ("{root}/a/file", b"file"),
        ("{root}", b".."),
        ("../top", b"file"),
        ("..", b".."),
    ],
)
def test_link_inside_leads_to_its_file(root: ConfinedRoot, tree: Path, text: str, shown: bytes) -> None:
    os.symlink(f"{tree}/a/file", tree / "top")
    os.symlink(text.format(root=tree), tree / "a" / "link")
    assert root.link(b"a/link") == shown
    assert os.path.samefile(os.path.join(os.fsencode(tree), b"a", shown), tree / "a" / "link")


@pytest.mark.parametrize("text", ["absent", "link", "file/x"])
def test_link_without_target_dangles(root: ConfinedRoot, tree: Path, text: str) -> None:
    os.symlink(text, tree / "a" / "link")
    assert root.link(b"a/link") == os.path.join(DANGLING, text.encode())


def test_dangling_link_never_resolves_within_the_root(root: ConfinedRoot, tree: Path) -> None:
    os.symlink("/etc/hosts", tree / "link")
    (Path(os.fsdecode(bytes(tree) + b"/" + DANGLING)) / "etc").mkdir(parents=True)
    (Path(os.fsdecode(bytes(tree) + b"/" + DANGLING)) / "etc/hosts").write_text("of the host")
    os.symlink(DANGLING, bytes(tree) + b"/other")
    shown = root.link(b"link")
    assert shown == DANGLING + b"/etc/hosts" and DANGLING not in root.names(b"")
    for access in (root.open, root.attr, root.names):
        for path in (shown, DANGLING):
            with pytest.raises(FileNotFoundError):
                access(path)
    assert root.link(b"other") == DANGLING + b"/" + DANGLING


def test_link_is_not_opened(root: ConfinedRoot, tree: Path) -> None:
    os.symlink("file", tree / "a" / "link")
    with pytest.raises(OSError) as caught:
        root.open(b"a/link")
    assert caught.value.errno == errno.ELOOP


def test_swapped_directory_never_leads_out(root: ConfinedRoot, tree: Path) -> None:
    real, link, other = tree / "real", tree / "link", tree / "swapped"
    real.mkdir()
    (real / "secret").write_text("inside")
    os.symlink("../outside", link)
    os.rename(real, other)
    ended = threading.Event()

    def swap() -> None:
        while not ended.is_set():
            os.rename(other, tree / "x")
            os.rename(tree / "x", real)
            os.rename(real, other)
            os.symlink("../outside", tree / "x")
            os.rename(tree / "x", real)
            os.unlink(real)

    thread = threading.Thread(target=swap)
    thread.start()
    seen: set[bytes] = set()
    try:
        # On a busy machine the directory may be missing in all of the first attempts.
        for attempt in count():
            if attempt >= 20_000 and seen:
                break
            try:
                seen.add(content(root, b"real/secret"))
            except OSError as e:
                assert e.errno in (errno.ENOENT, errno.ELOOP, errno.EAGAIN, errno.ENOTDIR)
    finally:
        ended.set()
        thread.join()
    assert seen == {b"inside"}


def test_root_that_is_a_file_is_served(tree: Path) -> None:
    root = ConfinedRoot(str(tree / "a" / "file"))
    try:
        assert content(root, b"") == b"inside"
        with pytest.raises(NotADirectoryError):
            root.open(b"file")
    finally:
        root.close()


def test_root_that_is_replaced_is_opened_anew(root: ConfinedRoot, tree: Path) -> None:
    assert root.names(b"a") == [b"b", b"file"]
    os.rename(tree, tree.parent / "moved")
    with pytest.raises(FileNotFoundError):
        root.names(b"")
    (tree / "new").mkdir(parents=True)
    assert root.names(b"") == [b"new"]


def test_names_of_any_bytes_are_listed(root: ConfinedRoot, tree: Path) -> None:
    name = bytes(set(range(1, 256)) - {ord("/")})
    Path(os.fsdecode(os.path.join(os.fsencode(tree), name))).write_text("odd")
    assert name in root.names(b"")
    assert content(root, name) == b"odd"


def test_pipe_is_no_file(root: ConfinedRoot, tree: Path) -> None:
    os.mkfifo(tree / "pipe")
    with pytest.raises(OSError, match="no regular file"):
        root.open(b"pipe")


def test_relative_root_is_refused() -> None:
    with pytest.raises(ValueError, match="absolute"):
        ConfinedRoot("a/b")
