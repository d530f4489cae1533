"""Where the daemon of a user keeps its socket, lock, log and the state of its mounts.

One daemon serves one boot of a machine, one user, one mount namespace and one installation of this wheel: the name of the folder is a
digest of these. `MONARCH_HOME` may be shared by machines and by checkouts.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from pathlib import Path

# The name of the daemon's socket in its folder.
SOCKET = "s"
# The hint for a folder that belongs to another user.
PRIVATE_HINT = "set MONARCH_HOME to a directory of this user"


def home() -> Path:
    """`MONARCH_HOME`, else `~/.monarch`."""
    return Path(os.path.abspath(os.path.expanduser(os.environ.get("MONARCH_HOME") or "~/.monarch")))


def daemon_folder() -> Path:
    """The folder of the daemon of this process; it may not exist."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        boot = os.uname().nodename
    parts = [boot, str(os.getuid()), os.readlink("/proc/self/ns/mnt"), _release(), sys.prefix, os.path.dirname(__file__)]
    return home() / "fs" / f"daemon-{hashlib.sha256(chr(0).join(parts).encode(errors='surrogateescape')).hexdigest()[:16]}"


def _release() -> str:
    """The version of this wheel, by the folder of its metadata: `importlib.metadata` takes 15 ms to load, in each process of a mount."""
    for folder in sys.path:
        with contextlib.suppress(OSError):
            for name in sorted(os.listdir(folder or ".")):
                if name.startswith("monarch_fs-") and name.endswith(".dist-info"):
                    return name
    return "unknown"
