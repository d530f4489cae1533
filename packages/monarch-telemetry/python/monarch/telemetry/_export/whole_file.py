"""A file that appears whole or not at all.

Until it is whole it has no name where the file system can do that (`O_TMPFILE`), so that the kernel removes what a killed process has
written; elsewhere it has a hidden name, which such a process leaves.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import IO

# The files of this process by number: the source of a link to a file without a name.
_OWN = "/proc/self/fd"


@contextmanager
def whole_file(path: str, *, force: bool) -> Generator[IO[bytes]]:
    """A file to write, for its owner only, which gets its name when the block ends without an error.

    An existing file is replaced with `force`; without, `FileExistsError`, also where it has come meanwhile. `OSError`.
    """
    named: str | None = None
    file = _without_name(os.path.dirname(path) or ".")
    try:
        if file is None:
            named = _hidden(path)
            file = _new(named)
        yield file
        file.flush()
        os.fsync(file.fileno())
        if named is None and (force or not _linked(file, path)):
            named = _hidden(path)
            if not _linked(file, named):
                _copy(file, named)
        if named is not None:
            _place(named, path, force=force)
    finally:
        if file is not None:
            file.close()
        if named is not None:
            with suppress(FileNotFoundError):
                os.unlink(named)
    _sync_folder(os.path.dirname(path) or ".")


def _without_name(folder: str) -> IO[bytes] | None:
    """None where the file system, or the machine, cannot do that."""
    if not os.path.isdir(_OWN):
        return None
    try:
        return open(os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600), "w+b")
    except OSError:
        # An error of the folder itself is reported by the file with a name.
        return None


def _hidden(path: str) -> str:
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.{secrets.token_hex(4)}.part")


def _new(path: str) -> IO[bytes]:
    return open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600), "w+b")


def _linked(file: IO[bytes], path: str) -> bool:
    """Gives a file without a name this one. False where that is not possible, `FileExistsError` where there is one."""
    try:
        # With a symbolic link as the source, only `linkat`, which needs a folder, creates a link to the file.
        folder = os.open(_OWN, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.link(str(file.fileno()), os.path.abspath(path), src_dir_fd=folder, follow_symlinks=True)
        finally:
            os.close(folder)
    except FileExistsError:
        raise
    except OSError:
        return False
    return True


def _copy(file: IO[bytes], path: str) -> None:
    file.seek(0)
    with _new(path) as copy:
        shutil.copyfileobj(file, copy)
        copy.flush()
        os.fsync(copy.fileno())


def _place(temporary: str, path: str, *, force: bool) -> None:
    """Gives the written file its name. A file that has come there in the meantime stays without `force`."""
    if not force:
        try:
            os.link(temporary, path)
            return
        except FileExistsError:
            raise
        except OSError:
            # A file system without hard links.
            if os.path.lexists(path):
                raise FileExistsError(path) from None
    os.replace(temporary, path)


def _sync_folder(folder: str) -> None:
    # The file already has its name: on a file system that cannot sync a folder, this is not a failure.
    with suppress(OSError):
        number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
