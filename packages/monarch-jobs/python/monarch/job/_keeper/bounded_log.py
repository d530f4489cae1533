"""The log of a keeper: one file that all its output is appended to, shortened to its newest half when it is too long.

The file is shortened in place, since descriptors that append to it belong to the whole process. Lines that are written within the
microseconds between reading and writing back are lost; in exchange, no thread stands between the process and its last words.
"""

from __future__ import annotations

import os

MOST_BYTES = 1 << 20


def shorten(path: str, most: int = MOST_BYTES) -> bool:
    """Keeps the newest half of the lines of a file above `most` bytes; False where there is nothing to do. Never raises."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        size = os.fstat(descriptor).st_size
        if size <= most:
            return False
        kept = os.pread(descriptor, most // 2, size - most // 2).partition(b"\n")[2]
        os.ftruncate(descriptor, 0)
        os.write(descriptor, b"(older lines are removed)\n" + kept)
        return True
    except OSError:  # a full disk: the file is empty then
        return True
    finally:
        os.close(descriptor)
