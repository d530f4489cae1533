"""Listings of directories, and digests of contents (rust/files)."""

from collections.abc import Sequence
from typing import TypeAlias, final

__all__ = ["Blake3", "FileDigest", "blake3", "digest_files", "list_directories"]

_Bytes: TypeAlias = bytes | bytearray | memoryview

def list_directories(paths: Sequence[bytes]) -> list[bytes | OSError]: ...
def digest_files(paths: Sequence[bytes], piece: int = 0) -> list[FileDigest | OSError]: ...
def blake3(data: _Bytes) -> bytes: ...

@final
class FileDigest:
    """The digest of a file's content when it was read. `record` is its attributes, as in a listing; `settled`: no process has written to it
    since.

    `has_xattrs`: it has extended attributes, of any class.
    """

    @property
    def record(self) -> bytes: ...
    @property
    def digests(self) -> bytes: ...
    @property
    def settled(self) -> bool: ...
    @property
    def has_xattrs(self) -> bool: ...

@final
class Blake3:
    """A digest of bytes that arrive in pieces, in order."""

    def __new__(cls) -> Blake3: ...
    def update(self, data: _Bytes) -> None: ...
    def digest(self) -> bytes: ...
