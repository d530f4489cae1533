"""Gather mounts of real hosts: live files, listings, rotation, errors, hosts that are lost, clients that are killed."""

from __future__ import annotations

import hashlib
import mmap
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from fs_gather_hosts import UNTIL, declare_gather, worker_hosts

from monarch.actor import this_host
from monarch.extension import service
from monarch.fs import FsError, MountBusyError
from monarch.fs._gather import gather_mount
from monarch.fs._gather.gather_mount import gather
from tools.frozen import freeze


@pytest.fixture(scope="module", autouse=True)
def declared(tmp_path_factory: pytest.TempPathFactory) -> None:
    declare_gather(tmp_path_factory.mktemp("entries"))


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    folder = tmp_path / "remote"
    (folder / "logs").mkdir(parents=True)
    (folder / "logs" / "out.log").write_text("first\n")
    return folder


@pytest.fixture
def local(tmp_path: Path) -> str:
    return str(tmp_path / "local")


def follower(script: str, *arguments: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-S", "-c", f"import os, sys\nt = sys.argv[1]\n{UNTIL}\n{script}", *arguments]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def read(script: str, *arguments: str) -> str:
    """What another process prints; `t` is its first argument."""
    process = follower(script, *arguments)
    try:
        text, _ = process.communicate(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert process.returncode == 0, text
    return text.strip()


def test_host_without_dimensions_is_shown_at_the_top(remote: Path, local: str) -> None:
    with gather(this_host(), str(remote), local):
        assert read("print(open(t + '/logs/out.log').read())", local) == "first"
        assert read("print(os.listdir(t), os.listdir(t + '/logs'))", local) == "['logs'] ['out.log']"
    assert not os.path.ismount(local) and not os.path.exists(local)


def test_names_of_any_bytes_and_links(remote: Path, local: str) -> None:
    name = b"a\xff\n name"
    (Path(os.fsdecode(bytes(remote) + b"/" + name))).write_bytes(b"odd")
    (remote / "inside").symlink_to("logs/out.log")
    (remote / "absolute").symlink_to(remote / "logs")
    (remote / "outside").symlink_to("/etc/hostname")
    os.mkfifo(remote / "pipe")
    with gather(this_host(), str(remote), local):
        names = read("print(sorted(os.listdir(t.encode())))", local)
        assert names == str(sorted([name, b"inside", b"absolute", b"outside", b"logs"]))
        assert read(f"print(open(t.encode() + b'/' + {name!r}).read())", local) == "odd"
        assert read("print(open(t + '/inside').read(), open(t + '/absolute/out.log').read())", local) == "first\n first"
        script = "print(os.path.islink(t + '/outside'), os.path.exists(t + '/outside'), os.path.exists(t + '/pipe'))"
        assert read(script, local) == "True False False"


def test_view_is_read_only(remote: Path, local: str) -> None:
    (remote / "logs" / "out.log").chmod(0o666)
    script = """
import errno
found = os.stat(t + '/logs/out.log')
print(oct(found.st_mode), found.st_uid == os.getuid(), found.st_nlink)
for act in (lambda: open(t + '/logs/out.log', 'a'), lambda: open(t + '/new', 'w'), lambda: os.unlink(t + '/logs/out.log'),
            lambda: os.mkdir(t + '/folder'), lambda: os.chmod(t + '/logs', 0o700), lambda: os.rename(t + '/logs', t + '/other')):
    try: act()
    except OSError as e: print(errno.errorcode[e.errno])
"""
    with gather(this_host(), str(remote), local):
        assert read(script, local).split() == ["0o100444", "True", "1", *["EACCES"] * 6]


def test_growing_log_is_followed(remote: Path, local: str) -> None:
    follow = "file = open(t + '/logs/out.log')\nprint(file.read().strip(), flush=True)\nprint(until(file.readline).strip(), flush=True)"
    with gather(this_host(), str(remote), local):
        tail = follower(follow, local)
        try:
            assert tail.stdout is not None
            assert tail.stdout.readline() == "first\n"
            with (remote / "logs" / "out.log").open("a") as file:
                file.write("second\n")
            assert tail.stdout.readline() == "second\n"
        finally:
            tail.kill()
            tail.communicate()


def test_tail_follows_a_rotated_and_truncated_log(remote: Path, local: str) -> None:
    log = remote / "logs" / "out.log"
    argv = ["tail", "-n", "+1", "-s", "0.05", "--max-unchanged-stats=1", "-F", f"{local}/logs/out.log"]
    with gather(this_host(), str(remote), local):
        tail = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            assert tail.stdout is not None
            assert tail.stdout.readline() == "first\n"
            with log.open("a") as file:
                file.write("second\n")
            assert tail.stdout.readline() == "second\n"
            log.rename(f"{log}.1")
            log.write_text("third\n")
            assert tail.stdout.readline() == "third\n"
            os.truncate(log, 0)
            log.write_text("4\n")
            assert tail.stdout.readline() == "4\n"
        finally:
            tail.kill()
            tail.communicate()


def test_another_user_has_no_access(remote: Path, local: str) -> None:
    if os.geteuid():
        pytest.skip("another user takes root to be")
    with gather(this_host(), str(remote), local):
        argv = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all,+dac_read_search"]
        rights = "--ambient-caps=-all,+dac_read_search"  # the folders above belong to root
        done = subprocess.run([*argv, rights, "ls", local], capture_output=True, text=True, timeout=20, check=False)
        assert done.returncode and "Permission denied" in done.stderr and not done.stdout
        assert read("print(os.listdir(t))", local) == "['logs']"


def test_directory_replaced_by_a_link_is_not_followed(remote: Path, local: str, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "out.log").write_text("secret")
    (remote / "link").symlink_to(tmp_path / "outside")
    script = """
found = set()
while time.monotonic() < end or "first\\n" not in found:
    for act in (lambda: open(t + '/logs/out.log').read(), lambda: str(os.listdir(t + '/logs'))):
        try: found.add(act())
        except OSError as e: found.add(e.errno)
print("secret" in found)
"""
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            for old, new in (("logs", "away"), ("link", "logs"), ("logs", "link"), ("away", "logs")):
                (remote / old).rename(remote / new)

    swapping = threading.Thread(target=swap)
    with gather(this_host(), str(remote), local):
        swapping.start()
        try:
            assert read("import time\nend = time.monotonic() + 2" + script, local) == "False"
        finally:
            stop.set()
            swapping.join()


def test_open_log_stays_readable_after_its_rotation(remote: Path, local: str) -> None:
    script = """
file = open(t + '/logs/out.log')
print(file.read(3), flush=True)
sys.stdin.readline()
print((file.read() + open(t + '/logs/out.log').read() + open(t + '/logs/out.log.1').read()).split())
"""
    log = remote / "logs" / "out.log"
    with gather(this_host(), str(remote), local):
        reader = follower(script, local)
        try:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "fir\n"
            log.rename(remote / "logs" / "out.log.1")
            log.write_text("new\n")
            read("until(lambda: open(t + '/logs/out.log').read() == 'new\\n')", local)
            text, _ = reader.communicate("\n", timeout=20)
            assert text.strip() == "['st', 'new', 'first']"
        finally:
            reader.kill()
            reader.communicate()


def test_truncated_file_is_short(remote: Path, local: str) -> None:
    large = remote / "large"
    large.write_bytes(b"x" * 1_000_000)
    with gather(this_host(), str(remote), local):
        assert read("print(os.path.getsize(t + '/large'))", local) == "1000000"
        os.truncate(large, 10)
        script = "f = os.open(t + '/large', os.O_RDONLY)\nprint(len(os.pread(f, 1 << 20, 0)), len(os.pread(f, 100, 500_000)))"
        assert read(script, local) == "10 0"


def test_one_byte_of_large_files_pulls_one_block(remote: Path, local: str) -> None:
    with (remote / "large").open("wb") as file:
        file.truncate(300 << 20)
        file.seek(200 << 20)
        file.write(b"x")
    with gather(this_host(), str(remote), local) as view:
        read("os.stat(t + '/large')", local)
        before = view.counters()["bytes"]
        assert read("print(os.pread(os.open(t + '/large', os.O_RDONLY), 1, 200 << 20))", local) == "b'x'"
        assert 128 << 10 <= view.counters()["bytes"] - before < 132 << 10
        assert read("print(len(open(t + '/large', 'rb').read()))", local) == str(300 << 20)


def test_large_file_has_its_bytes_for_all_readers(remote: Path, local: str) -> None:
    data = os.urandom(21_000_001)
    (remote / "large").write_bytes(data)
    script = "import hashlib\nprint(hashlib.sha256(open(t + '/hosts_0/large', 'rb').read()).hexdigest())"
    with worker_hosts(1) as (hosts, _), gather(hosts, str(remote), local, cache_bytes=1 << 20) as view:
        readers = [follower(script, local) for _ in range(3)]
        try:
            found = [reader.communicate(timeout=25)[0].strip() for reader in readers]
        finally:
            for reader in readers:
                reader.kill()
                reader.communicate()
        assert found == [hashlib.sha256(data).hexdigest()] * 3
        assert view.counters()["bytes"] > len(data)


def test_mapped_file_is_readable_by_the_client_itself(remote: Path, local: str) -> None:
    (remote / "weights").write_bytes(bytes(range(256)) * 4096)
    with gather(this_host(), str(remote), local):
        # A page fault holds the interpreter lock: the answer must not need this process.
        with open(f"{local}/weights", "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            assert mapped[1_000_000] == 1_000_000 % 256
        assert os.listdir(local) == ["logs", "weights"]


def test_wrong_arguments_are_named(remote: Path, local: str) -> None:
    with pytest.raises(ValueError, match="'relative'.*absolute"):
        gather(this_host(), str(remote), "relative")
    with pytest.raises(ValueError, match="remote: the remote path"):
        gather(this_host(), "remote", local)
    with pytest.raises(ValueError, match="cache_bytes is 0"):
        gather(this_host(), str(remote), local, cache_bytes=0)
    assert not os.path.exists(local)


def test_live_mount_is_not_mounted_over(remote: Path, local: str) -> None:
    with gather(this_host(), str(remote), local):
        with pytest.raises(MountBusyError, match="monarch-gather is mounted there"):
            gather(this_host(), str(remote), local)
        assert read("print(os.listdir(t))", local) == "['logs']"


def test_two_views_at_a_time(remote: Path, local: str) -> None:
    with gather(this_host(), str(remote), local), gather(this_host(), str(remote / "logs"), f"{local}-2"):
        assert read("print(os.listdir(t), os.listdir(sys.argv[2]))", local, f"{local}-2") == "['logs'] ['out.log']"
    assert not os.path.exists(local) and not os.path.exists(f"{local}-2")


def test_busy_mount_is_detached(remote: Path, local: str) -> None:
    view = gather(this_host(), str(remote), local)
    argv = [sys.executable, "-S", "-c", "import os, sys\nos.chdir(sys.argv[1])\nprint('in', flush=True)\nsys.stdin.read()", local]
    holder = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "in\n"
        view.close(deadline=0.1)
        assert not os.path.ismount(local)
        view.close()
    finally:
        holder.kill()
        holder.communicate()


CLIENT = """
import sys
sys.path[:0] = sys.argv[3:]
from monarch.actor import this_host
from monarch.fs._gather.gather_mount import gather
view = gather(this_host(), sys.argv[1], sys.argv[2])
print("mounted", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("killed", [True, False])
def test_mount_ends_with_its_client(remote: Path, local: str, killed: bool, back_end: str) -> None:
    argv = [sys.executable, "-c", CLIENT, str(remote), local, *filter(None, sys.path)]
    environment = {**os.environ, "MONARCH_FS_BACKEND": back_end}
    client = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    assert client.stdout is not None
    assert client.stdout.readline() == "mounted\n"
    assert read("print(os.listdir(t))", local) == "['logs']"
    if killed:
        client.kill()
    client.communicate(timeout=20)
    read("until(lambda: not os.path.ismount(t))", local)
    with gather(this_host(), str(remote), local):
        assert read("print(os.listdir(t))", local) == "['logs']"


def test_lost_host_keeps_its_directory_listed(remote: Path, local: str) -> None:
    for rank in range(2):
        (remote / f"hosts_{rank}").mkdir()
        (remote / f"hosts_{rank}" / "rank").write_text(str(rank))
    with worker_hosts(2) as (hosts, workers), gather({"trainers": hosts}, f"{remote}/$SUBDIR", local):
        script = "print({k: open(t + '/trainers/' + k + '/rank').read() for k in sorted(os.listdir(t + '/trainers'))})"
        assert read(script, local) == "{'hosts_0': '0', 'hosts_1': '1'}"
        workers[1].kill()
        script = """
import errno
try: os.listdir(t + '/trainers/hosts_1'); print('listed')
except OSError as e: print(errno.errorcode[e.errno])
print(sorted(os.listdir(t + '/trainers')), open(t + '/trainers/hosts_0/rank').read())
"""
        assert read(script, local) == "EIO\n['hosts_0', 'hosts_1'] 0"


NAMES = """
def names():
    try: return os.listdir(t)
    except OSError: return []
print(until(names))
"""


@pytest.mark.parametrize("with_server", [False, True])
def test_killed_bridge_is_replaced(remote: Path, local: str, with_server: bool) -> None:
    with gather(this_host(), str(remote), local) as view:
        bridge, server = service(this_host(), "gather").pid.call_one().get(), view.server_pid()
        if with_server:
            # The bridge must not start another one in the meantime.
            freeze(bridge)
            os.kill(server, signal.SIGKILL)
        os.kill(bridge, signal.SIGKILL)
        if not with_server:
            read("until(lambda: not os.path.exists(sys.argv[2]))", local, f"/proc/{server}")
        assert read(NAMES, local) == "['logs']"
        assert view.is_mounted and view.server_pid() != server
    assert not os.path.ismount(local) and not os.path.exists(local)


def test_close_needs_no_bridge(remote: Path, local: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather_mount, "_END_SECONDS", 0.1)
    view = gather(this_host(), str(remote), local)
    bridge = service(this_host(), "gather").pid.call_one().get()
    freeze(bridge)
    try:
        view.close(deadline=0)
        assert not os.path.ismount(local) and not os.path.exists(local)
    finally:
        os.kill(bridge, signal.SIGCONT)
    # The directory is unchanged for the next view.
    with gather(this_host(), str(remote), local):
        assert read("print(os.listdir(t))", local) == "['logs']"


def test_mount_that_replaced_the_view_stays(remote: Path, local: str) -> None:
    with gather(this_host(), str(remote), local) as view:
        subprocess.run(["umount", local], check=True)
        subprocess.run(["mount", "-t", "tmpfs", "other", local], check=True)
        assert not view.is_mounted
    try:
        assert os.path.ismount(local)
    finally:
        subprocess.run(["umount", local], check=True)


def test_view_that_replaced_another_stays(remote: Path, local: str) -> None:
    first = gather(this_host(), str(remote), local)
    subprocess.run(["umount", local], check=True)
    with gather(this_host(), str(remote), local) as second:
        first.close()
        assert second.is_mounted and read("print(os.listdir(t))", local) == "['logs']"
    assert not os.path.ismount(local)


def test_view_unmounted_by_a_user_stays_unmounted(remote: Path, local: str) -> None:
    with gather(this_host(), str(remote), local) as view:
        server = view.server_pid()
        subprocess.run(["umount", local], check=True)
        read("until(lambda: not os.path.exists(sys.argv[2]))", local, f"/proc/{server}")
        bridge = service(this_host(), "gather")
        # It has reported the end of the mount before it answers for the next one.
        with gather(this_host(), str(remote), f"{local}-2"):
            os.kill(bridge.pid.call_one().get(), signal.SIGKILL)
            assert read(NAMES, f"{local}-2") == "['logs']"
            assert not os.path.ismount(local)


def test_killed_server_is_replaced(remote: Path, local: str) -> None:
    with gather(this_host(), str(remote), local) as view:
        assert read("print(os.listdir(t))", local) == "['logs']"
        os.kill(view.server_pid(), signal.SIGKILL)
        assert read(NAMES, local) == "['logs']"
    assert not os.path.ismount(local)


def test_hanging_host_is_lost_and_returns(remote: Path, local: str) -> None:
    with worker_hosts(1) as (hosts, _), gather(hosts, str(remote), local):
        [pid] = service(hosts, "gather").pid.call().get().values()
        freeze(pid)
        try:
            script = "import errno\ntry: os.listdir(t + '/hosts_0')\nexcept OSError as e: print(errno.errorcode[e.errno])"
            assert read(script, local) == "EIO"
            assert read("print(os.listdir(t))", local) == "['hosts_0']"
        finally:
            os.kill(pid, signal.SIGCONT)
        script = """
def content():
    try: return open(t + '/hosts_0/logs/out.log').read()
    except OSError: return ""
print(until(content))
"""
        assert read(script, local) == "first"


def test_file_is_shown_at_the_mount_point(remote: Path, local: str) -> None:
    log = remote / "logs" / "out.log"
    with gather(this_host(), str(log), local) as view:
        assert read("print(os.path.isfile(t), open(t).read())", local) == "True first"
        with log.open("a") as file:
            file.write("second\n")
        read("until(lambda: open(t).read() == 'first\\nsecond\\n')", local)
        # The file that currently has the name is shown, even directly after a rotation.
        log.rename(f"{log}.1")
        log.write_text("new\n")
        read("until(lambda: open(t).read() == 'new\\n')", local)
        log.unlink()
        script = "def gone():\n try: return not open(t).read()\n except OSError: return True\nuntil(gone)"
        read(script, local)
        log.mkdir()
        log.rmdir()
        log.write_text("again\n")
        script = "def again():\n try: return open(t).read() == 'again\\n'\n except OSError: return False\nuntil(again)"
        read(script, local)
        os.kill(view.server_pid(), signal.SIGKILL)
        read(script, local)
    assert not os.path.lexists(local)


def test_mount_point_of_another_kind_is_refused(remote: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("")
    with pytest.raises(FsError, match="kept.*no directory"):
        gather(this_host(), str(remote), str(tmp_path / "kept"))
    with pytest.raises(FsError, match="remote.*the mount point is no file"):
        gather(this_host(), f"{remote}/logs/out.log", str(remote))
    with gather(this_host(), f"{remote}/logs/out.log", str(tmp_path / "kept")):
        assert read("print(open(t).read())", str(tmp_path / "kept")) == "first"
    assert (tmp_path / "kept").read_text() == "" and remote.is_dir()


def test_root_can_be_a_file(remote: Path, local: str) -> None:
    with worker_hosts(1) as (hosts, _), gather(hosts, f"{remote}/logs/out.log", local):
        assert read("print(os.listdir(t), open(t + '/hosts_0').read())", local) == "['hosts_0'] first"


def test_killed_service_is_found_again(remote: Path, local: str) -> None:
    with worker_hosts(1) as (hosts, _), gather(hosts, str(remote), local):
        [pid] = service(hosts, "gather").pid.call().get().values()
        os.kill(pid, signal.SIGKILL)
        script = """
def content():
    try: return open(t + '/hosts_0/logs/out.log').read()
    except OSError: return ""
print(until(content))
"""
        assert read(script, local) == "first"
        assert list(service(hosts, "gather").pid.call().get().values()) != [pid]
