"""The log of a keeper: one file that all its output is appended to, shortened to its newest half when it is too long.

The file is shortened in place, since descriptors that append to it belong to the whole process. Lines that are written within the
microseconds between reading and cutting are lost; in exchange, no thread stands between the process and its last words. The kept part is
there at any time, also for a reader, on a full disk, and after a kill: it is written over the beginning, then the rest is cut off.
"""

from __future__ import annotations

import os

MOST_BYTES = 1 << 20


def shorten(path: str, most: int = MOST_BYTES) -> bool:
    """Keeps the newest half of the lines of a file above `most` bytes; False where there is nothing to do. Never raises."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        size = os.fstat(descriptor).st_size
        if size <= most:
            return False
        kept = b"(older lines are removed)\n" + os.pread(descriptor, most // 2, size - most // 2).partition(b"\n")[2]
        written = os.pwrite(descriptor, kept, 0)
        os.ftruncate(descriptor, written)
        return True
    except OSError:  # an error of the disk: the file stays as it is
        return True
    finally:
        os.close(descriptor)
