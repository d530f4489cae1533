"""A walk of a mounted tree by another process, after which the kernel has the inodes of all files and takes their pages.

The daemon and the mount server must not touch the mount. A listing with attributes gives the kernel the inodes of all entries.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

# The most seconds of a walk: a million files need about ten.
WALK_SECONDS = 60.0
_WALK = """
import os, sys
left = [sys.argv[1]]
while left:
    try:
        with os.scandir(left.pop()) as entries:
            left += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        continue
"""


async def walk(target: str) -> None:
    """Returns when all directories of the mount have been listed, or the time is over."""
    # With -I -S the walk starts within 10 ms.
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", "-c", _WALK, target, stdin=asyncio.subprocess.DEVNULL, cwd="/", start_new_session=True
    )
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(WALK_SECONDS):
            await process.wait()
            return
    process.kill()
