"""Connections with the kernel: to mount, to look at mount points, to unmount and to abort, without touching what is mounted.

A process that asks a file system which no server answers waits for it, so what is mounted is read from /proc/self/mountinfo. Whether a FUSE
server is gone shows in no file of the kernel: a child process asks the mount with statfs(2), which is never answered from a cache, and is
left alone after a time limit.

mount(2) is tried first; where the kernel forbids it, fusermount3 mounts and passes the descriptor over a socket.
"""

from __future__ import annotations

import array
import ctypes
import errno
import os
import select
import shutil
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Literal, NamedTuple

from monarch.fs._kernel.holders import holders
from monarch.fs._kernel.mount_table import MountRow, mount_row, mount_rows
from monarch.fs._tree.operations import MountOptions
from monarch.fs.errors import FsError, MountBusyError

__all__ = [
    "Connection",
    "MountPoint",
    "abort",
    "descriptor_failed",
    "detach",
    "holders",
    "mount_point",
    "open_connection",
    "set_read_ahead",
]

_MS_RDONLY, _MS_NOSUID, _MS_NODEV = 1, 2, 4
_MNT_FORCE, _MNT_DETACH, _UMOUNT_NOFOLLOW = 1, 2, 8
_CONNECTIONS = Path("/sys/fs/fuse/connections")
# Seconds: fusermount3 and a statfs of a served mount need milliseconds.
FUSERMOUNT_TIMEOUT, PROBE_TIMEOUT = 10.0, 2.0
_PROBE = "import os, sys\ntry: os.statvfs(sys.argv[1])\nexcept OSError as e: sys.exit(e.errno)"
_libc = ctypes.CDLL(None, use_errno=True)


class Connection(NamedTuple):
    """A mounted file system without a server: `fd` is the connection. Not inheritable; the caller closes it."""

    fd: int
    # Minor number of the device of the mount: its name in /sys/fs/fuse/connections.
    device: int
    how: Literal["mount", "fusermount3"]


class MountPoint(NamedTuple):
    """What is at a path. `what` has the type and source of the file system that is mounted there."""

    kind: Literal["absent", "free", "live", "dead"]
    what: tuple[str, str] | None = None
    device: int = -1


def open_connection(target: str, options: MountOptions, *, is_file: bool = False) -> Connection:
    """Mounts at the directory `target`, or at the file. `FsError` with the errno and the reason of the kernel or of fusermount3."""
    fd, how = _by_mount(target, options, stat.S_IFREG if is_file else stat.S_IFDIR), "mount"
    if fd is None:
        fd, how = _by_fusermount(target, options), "fusermount3"
    row = mount_row(target)
    if row is None or not row.is_fuse():
        os.close(fd)
        raise FsError("mounted, but not in this mount namespace", path=target)
    return Connection(fd, row.minor, how)  # pyright: ignore[reportArgumentType]


def _by_mount(target: str, options: MountOptions, kind: int) -> int | None:
    """None: this process must not mount."""
    try:
        fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except PermissionError:
        # fusermount3 may be able to open it for this user, and otherwise reports the error.
        return None
    except OSError as e:
        raise FsError(f"cannot open /dev/fuse: {e.strerror}", path=target, errno=e.errno or errno.EIO, hint=_DEVICE_HINT) from None
    data = f"fd={fd},rootmode={kind:o},user_id={os.getuid()},group_id={os.getgid()},default_permissions"
    data += ",allow_other" if options.allow_other else ""
    flags = _MS_NOSUID | _MS_NODEV | (_MS_RDONLY if options.immutable else 0)
    # The kernel escapes a backslash or a new line in the source; the encoding below refuses a NUL.
    if not _libc.mount(os.fsencode(options.name), os.fsencode(target), b"fuse.monarch", flags, data.encode()):
        return fd
    code = ctypes.get_errno()
    os.close(fd)
    if code == errno.EPERM:
        return None
    raise FsError(f"mount(2): {os.strerror(code)}", path=target, errno=code)


_DEVICE_HINT = "load the kernel module fuse; in a container pass the device: --device /dev/fuse"


def _by_fusermount(target: str, options: MountOptions) -> int:
    program = _fusermount(target)
    name = options.name.replace("\\", "\\\\").replace(",", "\\,")
    settings = f"{'ro,' if options.immutable else ''}nosuid,nodev,default_permissions,subtype=monarch,fsname={name}"
    settings += ",allow_other" if options.allow_other else ""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        environment = {**os.environ, "_FUSE_COMMFD": str(theirs.fileno())}
        command = [program, "-o", settings, "--", target]
        _fusermount_run(command, target, env=environment, pass_fds=(theirs.fileno(),))
        theirs.close()
        ours.settimeout(FUSERMOUNT_TIMEOUT)
        received = array.array("i")
        _, ancillary, _, _ = ours.recvmsg(1, socket.CMSG_SPACE(received.itemsize))
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                received.frombytes(content[: len(content) - len(content) % received.itemsize])
    if not received:
        raise FsError(f"{program} passed no descriptor", path=target)
    os.set_inheritable(received[0], False)
    return received[0]


def _fusermount(target: str) -> str:
    program = shutil.which("fusermount3")
    if program is None:
        raise FsError("this user must not mount, and fusermount3 is missing", path=target, errno=errno.EPERM, hint="apt-get install fuse3")
    return program


def _fusermount_run(command: list[str], target: str, env: dict[str, str] | None = None, pass_fds: tuple[int, ...] = ()) -> None:
    try:
        done = subprocess.run(
            command, env=env, pass_fds=pass_fds, capture_output=True, text=True, errors="replace", timeout=FUSERMOUNT_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        raise FsError(f"{command[0]} did not end within {FUSERMOUNT_TIMEOUT:g} s", path=target, errno=errno.ETIMEDOUT) from None
    if done.returncode:
        raise _fusermount_error(done.stderr.strip() or f"{command[0]} ended with {done.returncode}", target)


def _fusermount_error(text: str, target: str) -> FsError:
    """The error of fusermount3 that has printed this text. The program exits with 1 for every error, so the text alone has the reason."""
    if "busy" in text.lower():
        return _busy(target)
    code = errno.EPERM if "permission" in text.lower() or "allow" in text or "access" in text else errno.EIO
    hint = "add the line user_allow_other to /etc/fuse.conf" if "user_allow_other" in text else None
    return FsError(text, path=target, errno=code, hint=hint)


def mount_point(target: str) -> MountPoint:
    """What is at `target`, without a wait for a server: a mount that does not answer within two seconds counts as live."""
    row = mount_row(target)
    if row is None:
        try:
            os.lstat(target)
        except FileNotFoundError:
            return MountPoint("absent")
        except OSError as e:
            # The connection of a directory on the way has ended; the target itself is unknown.
            raise FsError(f"cannot be looked at: {e.strerror}", path=target, errno=e.errno or errno.EIO) from None
        return MountPoint("free")
    return MountPoint("dead" if row.is_fuse() and _ended(row) else "live", (row.kind, row.source), row.minor if row.major == 0 else -1)


def _ended(row: MountRow) -> bool:
    child = subprocess.Popen(
        [sys.executable or "python3", "-I", "-S", "-c", _PROBE, row.path],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        return child.wait(PROBE_TIMEOUT) in (errno.ENOTCONN, errno.ECONNABORTED)
    except subprocess.TimeoutExpired:
        child.kill()
        try:
            child.wait(0.2)
        except subprocess.TimeoutExpired:
            # The server has received the request and does not answer. The child ends with the answer; `subprocess` reaps it then.
            pass
        return False


def detach(target: str, *, lazy: bool) -> None:
    """Unmounts; nothing happens where nothing is mounted. `MountBusyError` names the processes that hold it, if not `lazy`."""
    row = mount_row(target)
    if row is None:
        return
    if not _libc.umount2(os.fsencode(row.path), _UMOUNT_NOFOLLOW | (_MNT_DETACH if lazy else 0)):
        return
    code = ctypes.get_errno()
    if code == errno.EPERM:
        _fusermount_run([_fusermount(target), "-u", *(["-z"] if lazy else []), "--", row.path], target)
    elif code == errno.EBUSY:
        raise _busy(target)
    elif code not in (errno.EINVAL, errno.ENOENT):
        raise FsError(f"cannot be unmounted: {os.strerror(code)}", path=target, errno=code)


def _busy(target: str) -> MountBusyError:
    found = holders(target)
    shown = ", ".join(f"{pid} ({command})" for pid, command in found[:5]) or "no process of this user that can be seen"
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    return MountBusyError(f"cannot be unmounted, in use by {shown}{more}", path=target)


def abort(device: int) -> None:
    """Ends a connection: each request of it fails at once, in its server and in its readers. Nothing happens if it has ended."""
    path = _CONNECTIONS / str(device) / "abort"
    try:
        path.write_text("1")
        return
    except FileNotFoundError:
        if os.path.ismount(_CONNECTIONS):
            return
        cause = FsError("the control file system of FUSE is not mounted", path=str(_CONNECTIONS), hint=_CONTROL_HINT)
    except OSError as e:
        cause = FsError(f"cannot abort the connection: {e.strerror}", path=str(path), errno=e.errno or errno.EIO)
    # A forced unmount always aborts the connection, even if it cannot unmount; only a process that may mount can do it.
    rows = [row for row in mount_rows() if row.is_fuse() and (row.major, row.minor) == (0, device)]
    if (
        rows
        and _libc.umount2(os.fsencode(rows[-1].path), _UMOUNT_NOFOLLOW | _MNT_FORCE)
        and ctypes.get_errno() not in (errno.EBUSY, errno.EINVAL)
    ):
        raise cause


_CONTROL_HINT = f"mount -t fusectl fusectl {_CONNECTIONS}"


def set_read_ahead(target: str, count: int) -> bool:
    """Sets the read-ahead of a mount, in bytes; False where this user must not: the kernel's default of 128 KiB stays."""
    row = mount_row(target)
    if row is None:
        return False
    try:
        Path(f"/sys/class/bdi/{row.major}:{row.minor}/read_ahead_kb").write_text(str(count >> 10))
    except OSError:
        return False
    return True


def descriptor_failed(fd: int) -> bool:
    """Whether the connection of a descriptor has ended: unmounted or aborted."""
    poll = select.poll()
    poll.register(fd, 0)
    return bool(poll.poll(0))
