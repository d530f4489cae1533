"""What a machine lacks to mount, with the package or the setting that remedies it; nothing is mounted to find out."""

from __future__ import annotations

import os
import platform
import re
import shutil
from importlib.util import find_spec
from pathlib import Path

from monarch.extension import setting
from monarch.fs._kernel.interposer import InterposerError, build
from monarch.fs._tree.operations import AUTO, DEVICE, PYFUSE3

# The first version of Linux that sends requests again, so that another server can resume a connection.
_RESEND = (6, 9)
_BUILD = "apt-get install gcc libc6-dev python3-dev pkg-config libfuse3-dev, then pip install pyfuse3"
_HEADERS = "apt-get install gcc libc6-dev pkg-config libfuse3-dev"


def chosen_backend() -> str:
    """By the setting `fs_backend`."""
    return str(setting("fs_backend") or AUTO)


def require_pyfuse3() -> None:
    """Raises where `auto` does not take pyfuse3: `ImportError` where it is not installed, `InterposerError` without its interposer.

    Without the interposer each open is a request, and no server takes a connection over: the device itself serves better.
    """
    if find_spec("pyfuse3") is None:
        raise ImportError("pyfuse3 is not installed")
    build()


def serving_backend() -> tuple[str, str]:
    """The back end of mounts of this interpreter, and why `auto` does not take pyfuse3, or ""."""
    if (chosen := chosen_backend()) != AUTO:
        return chosen, ""
    try:
        require_pyfuse3()
    except (ImportError, InterposerError) as e:
        return DEVICE, str(e)
    return PYFUSE3, ""


def problems(*, allow_other: bool = False) -> list[str]:
    """What prevents a mount on this machine, one line each; empty: nothing."""
    found: list[str] = []
    backend = chosen_backend()
    if backend not in (AUTO, DEVICE, PYFUSE3):
        found.append(f"fs_backend is {backend!r} (set it to {AUTO!r}, {DEVICE!r} or {PYFUSE3!r})")
    if backend == PYFUSE3 and find_spec("pyfuse3") is None:
        found.append(f"pyfuse3 is missing ({_BUILD})")
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        found.append("/dev/fuse is missing (modprobe fuse; for a container: --device /dev/fuse)")
    except OSError as e:
        found.append(f"/dev/fuse cannot be opened: {e.strerror} (chmod 666 /dev/fuse; for a container: --device /dev/fuse)")
    if not may_mount():
        if shutil.which("fusermount3") is None:
            found.append("fusermount3 is missing (apt-get install fuse3), and this user must not mount")
        if allow_other and not user_allow_other():
            found.append("user_allow_other is not set (add the line user_allow_other to /etc/fuse.conf)")
    return found


def remarks() -> list[tuple[str, str]]:
    """What makes mounts slower or less robust here, and the remedy."""
    found: list[tuple[str, str]] = []
    if chosen_backend() == PYFUSE3:
        try:
            build()
        except InterposerError as e:
            found.append((f"opens of files are requests: {e}", _HEADERS))
    if not can_resume():
        found.append(
            (f"Linux {platform.release()} cannot resume a connection, so a server that ends means a new mount", "Linux 6.9 or later")
        )
    if not os.path.ismount("/sys/fs/fuse/connections") and not may_mount():
        found.append(("the control file system of FUSE is not mounted", "mount -t fusectl fusectl /sys/fs/fuse/connections"))
    return found


def may_mount() -> bool:
    """Whether this process has the capability of mount(2): CAP_SYS_ADMIN, number 21, in its user namespace."""
    match = re.search(r"^CapEff:\s*([0-9a-f]+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return match is not None and bool(int(match[1], 16) >> 21 & 1)


def user_allow_other() -> bool:
    try:
        lines = Path("/etc/fuse.conf").read_text(errors="replace").splitlines()
    except OSError:
        return False
    return any(line.strip() == "user_allow_other" for line in lines)


def can_resume() -> bool:
    """Whether the kernel sends the requests of a connection to its next server."""
    match = re.match(r"(\d+)\.(\d+)", platform.release())
    return match is not None and (int(match[1]), int(match[2])) >= _RESEND
