"""Answers of a real mount that the tables of SEMANTICS.md state and other tests do not show."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from fs_real_tree import LIMIT, mounted_directory

CALLS = """
import errno, fcntl, mmap, os, socket, sys
t = sys.argv[1]; f, new = t + "/f", t + "/new"
def a(call, *words, **more):
    try: return repr(call(*words, **more))
    except OSError as e: return errno.errorcode[e.errno]
fd = os.open(f, os.O_RDONLY)
everything = os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC, os.O_RDONLY | os.O_CREAT
print([a(os.open, t + ("/new" if flags & os.O_CREAT else "/f"), flags) for flags in everything])
print([a(call, new) for call in (os.mkdir, os.mknod)], a(os.symlink, "x", new), a(os.link, f, new))
print(a(os.unlink, f), a(os.rmdir, t + "/d"), a(os.rename, f, t + "/g"), a(os.truncate, f, 0))
print(a(os.chmod, f, 0), a(os.chown, f, 0, 0), a(os.utime, f), a(os.setxattr, f, "user.a", b""))
print(a(os.removexattr, f, "user.a"), a(socket.socket(socket.AF_UNIX).bind, new), a(os.access, f, os.W_OK))
print(a(os.stat, t + "/no"), a(os.stat, t + "/" + "n" * 256), a(os.stat, t + "/f/x"), a(os.readlink, f), os.readlink(t + "/out"))
print(a(mmap.mmap, fd, 0), mmap.mmap(fd, 0, prot=mmap.PROT_READ | mmap.PROT_WRITE, flags=mmap.MAP_PRIVATE)[:4])
print(os.isatty(fd), a(fcntl.flock, fd, fcntl.LOCK_EX | fcntl.LOCK_NB), a(os.fsync, fd), a(os.getxattr, f, "user.a"))
print(os.lseek(fd, 0, os.SEEK_DATA), os.lseek(fd, 0, os.SEEK_HOLE), os.listxattr(f), os.stat(t + "/d").st_nlink, os.statvfs(t).f_bavail)
s = os.stat(f); print(s.st_atime_ns == s.st_mtime_ns == s.st_ctime_ns)
"""


def test_calls_answer_as_the_tables_state(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "d").mkdir(parents=True)
    (source / "f").write_bytes(b"content")
    (source / "out").symlink_to("../../outside")
    with mounted_directory(source, tmp_path) as mount:
        command = [sys.executable, "-S", "-c", CALLS, str(mount.target)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip().split("\n") == [
            str(["EROFS"] * 4),
            "['EROFS', 'EROFS'] EROFS EROFS",
            "EROFS EROFS EROFS EROFS",
            "EROFS EROFS EROFS EROFS",
            "EROFS EROFS False",
            "ENOENT ENAMETOOLONG ENOTDIR EINVAL ../../outside",
            "EACCES b'cont'",
            "False None None ENODATA",
            "0 7 [] 1 0",
            "True",
        ]


def test_mount_inside_vanished_directory_is_detached(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "d").mkdir(parents=True)
    with mounted_directory(source, tmp_path) as mount:
        inner = mount.target / "d"
        subprocess.run(["mount", "-t", "tmpfs", "inner", str(inner)], check=True, timeout=LIMIT)
        os.rmdir(source / "d")
        mount.refresh()
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
        assert str(inner) not in mounts
