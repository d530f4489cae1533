"""Listings and digests for other wheels."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from monarch.extension.directory_tree import Blake3, FileDigest, blake3, digest_files, list_directories, parse_listing, parse_record


def listing(path: Path) -> bytes:
    [found] = list_directories([os.fsencode(path)])
    assert isinstance(found, bytes)
    return found


def test_attributes_are_those_of_lstat(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("12345")
    os.link(tmp_path / "file", tmp_path / "again")
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "folder").mkdir(0o750)
    os.utime(tmp_path / "file", ns=(1, -1_500_000_000))
    found = parse_listing(listing(tmp_path))
    assert list(found) == [b"again", b"file", b"folder", b"link"]
    for name, attributes in found.items():
        st = os.lstat(tmp_path / os.fsdecode(name))
        own = (
            st.st_mode,
            st.st_nlink,
            st.st_uid,
            st.st_gid,
            st.st_dev,
            st.st_ino,
            st.st_size,
            st.st_blocks,
            st.st_mtime_ns,
            st.st_ctime_ns,
        )
        if stat.S_ISDIR(st.st_mode):
            own = (own[0], 0, *own[2:6], 0, 0, st.st_mtime_ns, 0)
        assert tuple(attributes) == own
    assert found[b"file"].mtime_ns == -1_500_000_000


def test_unreadable_entry_is_an_error_of_its_path(tmp_path: Path) -> None:
    paths = [os.fsencode(tmp_path / name) for name in ("none", "file", "nul\0")]
    (tmp_path / "file").write_text("")
    first, second, third = list_directories(paths)
    assert isinstance(first, FileNotFoundError) and first.filename == paths[0]
    assert isinstance(second, NotADirectoryError) and second.filename == paths[1]
    assert isinstance(third, OSError) and third.errno == errno.EINVAL
    missing, empty, _ = digest_files(paths)
    assert isinstance(missing, FileNotFoundError) and missing.strerror == os.strerror(errno.ENOENT)
    assert isinstance(empty, FileDigest) and empty.digests == blake3(b"")


def test_digests_of_pieces_and_of_the_whole(tmp_path: Path) -> None:
    data = os.urandom(300_000)
    (tmp_path / "file").write_bytes(data)
    [pieces], [whole] = (digest_files([os.fsencode(tmp_path / "file")], piece=piece) for piece in (1 << 17, 0))
    assert isinstance(pieces, FileDigest) and isinstance(whole, FileDigest)
    assert pieces.digests == b"".join(blake3(data[at : at + (1 << 17)]) for at in range(0, len(data), 1 << 17))
    assert whole.digests == blake3(memoryview(data)) and whole.settled
    assert parse_record(whole.record).size == len(data)
    running = Blake3()
    running.update(data[:1000])
    running.update(bytearray(data[1000:]))
    assert running.digest() == whole.digests


def test_extended_attributes_are_announced(tmp_path: Path) -> None:
    plain, tagged = tmp_path / "plain", tmp_path / "tagged"
    plain.write_text("text")
    tagged.write_text("text")
    try:
        os.setxattr(tagged, "user.tag", b"value")
    except OSError as e:
        pytest.skip(f"{tmp_path} takes no extended attributes: {e.strerror}")
    of_plain, of_tagged = digest_files([os.fsencode(plain), os.fsencode(tagged)])
    assert isinstance(of_plain, FileDigest) and isinstance(of_tagged, FileDigest)
    assert of_tagged.has_xattrs
    assert of_plain.has_xattrs == bool(os.listxattr(plain))


def test_digest_is_blake3() -> None:
    # The first of the test vectors that the authors of BLAKE3 publish: no input.
    assert blake3(b"").hex() == "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"


@pytest.mark.parametrize("damaged", [b"", b"\1", b"\1\0\0\0", b"\0\0\0\0x", b"\xff\xff\xff\xff" + bytes(100)])
def test_bytes_that_are_no_listing(damaged: bytes) -> None:
    with pytest.raises(ValueError, match="no listing of a directory"):
        parse_listing(damaged)
