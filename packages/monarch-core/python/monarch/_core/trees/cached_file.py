"""Values in files that only save time: written whole, and verified when they are read. A damaged file counts as none."""

from __future__ import annotations

import marshal
import os

from monarch._core._native.files import blake3

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Path = str | bytes | os.PathLike[str]

_DIGEST = 32
# Other versions of Python write another format.
_FORMAT = b"marshal %d\0" % marshal.version


def load_cached(path: Path, most: int = 1 << 30) -> Any:
    """The value in a file; None if the file is not there, damaged, another user's, or has more than `most` bytes."""
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            if found.st_uid != os.geteuid() or not _DIGEST <= found.st_size <= most:
                return None
            digest, body = file.read(_DIGEST), file.read()
    except OSError:
        return None
    return marshal.loads(body[len(_FORMAT) :]) if body.startswith(_FORMAT) and blake3(body) == digest else None


def save_cached(path: Path, value: Any, suffix: bytes | None = None) -> bool:
    """Replaces a file in one step; False if that is impossible, and the old file stays. `value` is one that `marshal` can write.

    Processes that save the same file at once use different temporary names, unless the caller gives a suffix.
    """
    place = os.fsencode(path)
    temporary = place + (b".%d" % os.getpid() if suffix is None else suffix)
    body = _FORMAT + marshal.dumps(value)
    try:
        os.makedirs(os.path.dirname(place), 0o700, exist_ok=True)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            with open(fd, "wb") as file:
                file.write(blake3(body))
                file.write(body)
            os.rename(temporary, place)
        except OSError:
            os.unlink(temporary)
            return False
    except OSError:
        return False
    return True
