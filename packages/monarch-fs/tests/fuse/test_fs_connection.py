"""Mount points and connections: odd names, holders, other users, user namespaces, and many mounts in a row."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from fs_mounted import LIMIT, SERVER, mounted, output, reader

from monarch.fs import MountBusyError
from monarch.fs._kernel import connection
from monarch.fs._kernel.mount_table import mount_rows
from monarch.fs._tree.operations import MountOptions
from monarch.fs.errors import FsError

# Mounts, serves, reads and unmounts as the user of the process.
_ROUND = """
import os, subprocess, sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from fs_mounted import connection, mounted, output
with mounted(Path(sys.argv[1])) as (mount, server):
    print(mount.connection.how, output("print(open(t + '/small').read(), os.stat(t + '/small').st_uid)", mount.target))
    connection.detach(str(mount.target), lazy=False)
    assert server.line() == "ended"
"""


@pytest.mark.parametrize("name", ["a b", "new\nline", "back\\slash", "com,ma", "m\u00fc\udcff"])
def test_mount_point_with_any_name_is_found(tmp_path: Path, name: str) -> None:
    with mounted(tmp_path / name) as (mount, server):
        assert connection.mount_point(str(mount.target)) == connection.MountPoint(
            "live", ("fuse.monarch", "a tree"), mount.connection.device
        )
        assert output("print(open(t + '/small').read())", mount.target) == "hello"
        connection.detach(str(mount.target), lazy=False)
        assert server.line() == "ended"
        assert connection.mount_point(str(mount.target)).kind == "free"


def test_mount_point_that_is_absent_or_a_link(tmp_path: Path) -> None:
    assert connection.mount_point(str(tmp_path / "no")).kind == "absent"
    (tmp_path / "link").symlink_to("m")
    with mounted(tmp_path / "m"):
        assert connection.mount_point(str(tmp_path / "link")).kind == "live"
        assert connection.mount_point(str(tmp_path)).kind == "free"


def test_mount_at_missing_directory_names_it(tmp_path: Path) -> None:
    with pytest.raises(FsError, match="no: mount.2.: No such file") as raised:
        connection.open_connection(str(tmp_path / "no"), MountOptions())
    assert raised.value.errno == 2


def test_holders_are_named_and_lazy_detach_works(tmp_path: Path) -> None:
    with mounted(tmp_path / "m") as (mount, server):
        held = reader("os.chdir(t)\nprint('in', flush=True)\nsys.stdin.read()", mount.target)
        mapped = reader(
            "import mmap\nf = os.open(t + '/big', 0)\nm = mmap.mmap(f, 0, prot=1)\nos.close(f)\nprint('in', flush=True)\nsys.stdin.read()",
            mount.target,
        )
        try:
            for process in (held, mapped):
                assert process.stdout is not None and process.stdout.readline() == "in\n"
            pids = [pid for pid, _ in connection.holders(str(mount.target))]
            assert {held.pid, mapped.pid} <= set(pids)
            with pytest.raises(MountBusyError, match=str(held.pid)):
                connection.detach(str(mount.target), lazy=False)
            connection.detach(str(mount.target), lazy=True)
            assert connection.mount_point(str(mount.target)).kind == "free"
        finally:
            for process in (held, mapped):
                process.kill()
                process.communicate()
        assert server.line() == "ended"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
@pytest.mark.skipif(shutil.which("fusermount3") is None, reason="fusermount3 is missing")
def test_another_user_mounts_by_fusermount(tmp_path: Path) -> None:
    # The device of this machine may be closed to others: the mount namespace of the test has an open one, as distributions have.
    device = tmp_path / "device"
    script = 'mknod "$0" c 10 229 && chmod 666 "$0" && mount --bind "$0" /dev/fuse && exec "$@"'
    own = ["unshare", "-m", "--propagation", "private", "sh", "-c", script, str(device)]
    # The interpreter may be in a folder of root; the other user keeps only the right of root to read it.
    rights = [f"--{kind}-caps=-all,+dac_read_search" for kind in ("inh", "ambient")]
    _round(tmp_path, [*own, "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *rights], "fusermount3 hello 65534")


def test_root_of_user_namespace_mounts_itself(tmp_path: Path) -> None:
    _round(tmp_path, ["unshare", "-Urm"], "mount hello 0")


def _round(tmp_path: Path, prefix: list[str], expected: str) -> None:
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    # The mount point belongs to the other user; so does the cache of the interposer.
    for name in ("m", "home"):
        (tmp_path / name).mkdir()
        if os.geteuid() == 0:
            os.chown(tmp_path / name, 65534, 65534)
    environment = {**os.environ, "MONARCH_HOME": str(tmp_path / "home"), "HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [*prefix, sys.executable, "-c", _ROUND, str(tmp_path / "m"), str(SERVER.parent)],
        capture_output=True, text=True, timeout=LIMIT, env=environment, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (0, expected), done.stderr


def test_thousand_mounts_leave_nothing(tmp_path: Path) -> None:
    before = (len(os.listdir("/proc/self/fd")), threading.active_count(), len(mount_rows()))
    for _ in range(1000):
        found = connection.open_connection(str(tmp_path), MountOptions())
        os.close(found.fd)
        connection.detach(str(tmp_path), lazy=False)
    assert (len(os.listdir("/proc/self/fd")), threading.active_count(), len(mount_rows())) == before
