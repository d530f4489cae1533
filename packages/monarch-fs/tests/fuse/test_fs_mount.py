"""`monarch.fs.mount` on hosts: what they show, refreshes, errors, hosts whose service is killed."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from monarch.actor import this_host
from monarch.fs import FsError, StaleSourceError, mount
from monarch.fs._kernel.preflight import serving_backend
from monarch.remotemount import remotemount
from tools.bare_interpreter import run_bare


def read(script: str, *arguments: str | os.PathLike[str]) -> str:
    """What another process prints: this one must not wait for its own mounts."""
    argv = [sys.executable, "-c", script, *map(os.fspath, arguments)]
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=20).stdout.strip()


ERROR = "import errno, sys\ntry: open(sys.argv[1]).read()\nexcept OSError as e: print(errno.errorcode[e.errno])"
CONTENT = "import sys; print(open(sys.argv[1]).read())"
NAMES = "import os, sys; print(sorted(os.listdir(sys.argv[1])))"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "package").mkdir(parents=True)
    (folder / "package" / "module.py").write_text("VALUE = 1\n")
    (folder / "weights").write_bytes(os.urandom(3 << 20))
    return folder


@pytest.fixture
def target(tmp_path: Path) -> str:
    return str(tmp_path / "mounted")


def test_mount_shows_the_source_and_refreshes_its_edits(source: Path, target: str) -> None:
    with mount(this_host(), source, target, pyc="as-is") as mounted:
        assert read(CONTENT, f"{target}/package/module.py") == "VALUE = 1"
        same = "import sys; print(open(sys.argv[1], 'rb').read() == open(sys.argv[2], 'rb').read())"
        assert read(same, f"{target}/weights", source / "weights") == "True"
        first = mounted.generation
        (source / "package" / "module.py").write_text("VALUE = 2\n")
        (source / "new").write_text("new")
        assert read(NAMES, target) == "['package', 'weights']"
        report = mounted.refresh().get()
        assert report.changed == 2 and report.generation == mounted.generation != first
        assert read(CONTENT, f"{target}/package/module.py") == "VALUE = 2"
        assert read(NAMES, target) == "['new', 'package', 'weights']"
        again = mounted.refresh().get()
        assert (again.changed, again.bytes_sent) == (0, 0)
    assert not os.path.ismount(target)


BARE = """
import subprocess
from monarch.actor import this_host
from monarch.fs import gather, mount

def cat(path):
    print(subprocess.run(["cat", path], check=True, capture_output=True, text=True, timeout=20).stdout.strip())

source, target = sys.argv[1:]
with mount(this_host(), source, target):
    cat(f"{target}/package/module.py")
with gather(this_host(), source, target):
    cat(f"{target}/package/module.py")
"""


def test_packages_found_by_sys_path_suffice(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The test has its own daemon, started by a process in this environment.
    monkeypatch.setenv("MONARCH_HOME", str(tmp_path / "home"))
    assert run_bare(BARE, str(source), str(tmp_path / "shown")) == "VALUE = 1\n" * 2


def test_times_before_1970_and_after_2262(source: Path, target: str) -> None:
    for name, seconds in (("before", -1.5), ("long before", -2_000_000_000), ("after", 10_000_000_000)):
        (source / name).write_text("")
        os.utime(source / name, (seconds, seconds))
    with mount(this_host(), source, target, pyc="as-is"):
        script = "import os, sys; print([os.stat(f'{sys.argv[1]}/{name}').st_mtime_ns for name in ('before', 'long before', 'after')])"
        assert read(script, target) == str([-1_500_000_000, -2_000_000_000_000_000_000, (1 << 63) - 1])


def test_writes_are_refused(source: Path, target: str) -> None:
    with mount(this_host(), source, target):
        script = "import sys\ntry: open(sys.argv[1], 'w')\nexcept OSError as e: print(e.errno)"
        assert read(script, f"{target}/new") == "30"


def test_status_and_all_bytes(source: Path, target: str) -> None:
    with mount(this_host(), source, target, pyc="as-is", fetch="demand") as mounted:
        mounted.prefetch("*.py").get()
        mounted.complete().get()
        [host] = mounted.status().get().hosts
        assert (host.state, host.generation, host.bytes_held) == ("live", mounted.generation, (3 << 20) + len("VALUE = 1\n"))
        assert host.bytes_total == host.bytes_held and not host.stale_paths
        assert host.backend == serving_backend()[0]


def test_status_has_the_bytes_held_and_their_total(source: Path, target: str) -> None:
    (source / "other").write_text(secrets.token_hex())
    with mount(this_host(), source, target, pyc="as-is", fetch="demand") as mounted:
        mounted.prefetch("other").get()
        [host] = mounted.status().get().hosts
        assert (host.rank, host.bytes_total) == (0, (3 << 20) + 64 + len("VALUE = 1\n"))
        # The other small file is in the store of other tests.
        assert 64 <= host.bytes_held < 1 << 20


def test_patterns_of_a_prefetch_are_those_of_exclude(source: Path, target: str) -> None:
    (source / "package" / "below").mkdir()
    (source / "package" / "below" / "data").write_text(secrets.token_hex())
    with mount(this_host(), source, target, pyc="as-is", fetch="demand") as mounted:
        for pattern in ("", "[a", "/absolute", "../above"):
            with pytest.raises(ValueError, match="pattern"):
                mounted.prefetch(pattern)
        with pytest.raises(FileNotFoundError, match=r"\*\.txt in"):
            mounted.prefetch("package", "*.txt").get()
        before = mounted.status().get().hosts[0].bytes_held
        mounted.prefetch("package/").get()
        assert mounted.status().get().hosts[0].bytes_held >= before + 64
        # The source is no longer needed.
        (source / "package" / "below" / "data").unlink()
        assert len(read(CONTENT, f"{target}/package/below/data")) == 64


def test_file_of_changed_content_is_stale(source: Path, target: str) -> None:
    (source / "package" / "module.py").write_text(f"VALUE = '{secrets.token_hex()}'\n")
    shutil.copy(source / "package" / "module.py", source / "copy")
    with mount(this_host(), source, target, pyc="as-is", fetch="demand") as mounted:
        (source / "copy").unlink()
        (source / "package" / "module.py").unlink()
        (source / "package" / "module.py").mkdir()
        assert "EIO" in read(ERROR, f"{target}/package/module.py")
        [host] = mounted.status().get().hosts
        assert host.stale_paths == ["package/module.py"]
        assert host.last_error == "package/module.py: the content has changed since the index was made"


def test_removed_source_is_named(source: Path, target: str) -> None:
    with mount(this_host(), source, target, pyc="as-is") as mounted:
        shutil.rmtree(source)
        with pytest.raises(FileNotFoundError) as caught:
            mounted.refresh().get()
        assert str(source) in str(caught.value) and "b'" not in str(caught.value)


STORE = """
import sys
from monarch.actor import this_host
from monarch.fs import PreflightError, mount
try:
    with mount(this_host(), sys.argv[1], sys.argv[2]) as mounted:
        mounted.complete().get()
        print("mounted")
except PreflightError as e:
    print(list(e.missing), str(e))
"""


@pytest.mark.parametrize("folder", ["weights", "relative/store"])
def test_unusable_store_is_named(source: Path, target: str, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = folder if folder.startswith("relative") else str(source / folder)
    monkeypatch.setenv("MONARCH_FS_STORE_DIR", place)
    printed = read(STORE, source, target)
    assert printed.startswith(f"['{os.uname().nodename} (rank 0)']")
    assert place in printed and "the store of the setting fs_store_dir cannot be used" in printed
    assert not os.path.exists(target)


def test_store_in_memory_works(source: Path, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        monkeypatch.setenv("MONARCH_FS_STORE_DIR", f"{folder}/store")
        assert read(STORE, source, target) == "mounted"
        assert os.listdir(f"{folder}/store/segments")


def test_files_that_changed_since_the_index_are_named(source: Path, target: str) -> None:
    # A content that is in no store.
    (source / "package" / "module.py").write_text(f"VALUE = '{secrets.token_hex()}'\n")
    with mount(this_host(), source, target, pyc="as-is", fetch="demand") as mounted:
        (source / "package" / "module.py").write_text("VALUE = 3\n")
        with pytest.raises(StaleSourceError, match="package/module.py") as caught:
            mounted.complete().get()
        assert caught.value.paths == ["package/module.py"] and "call refresh()" in str(caught.value)
        mounted.refresh().get()
        mounted.complete().get()
        assert read(CONTENT, f"{target}/package/module.py") == "VALUE = 3"


def test_removed_source_files_differ_from_changed_ones(source: Path, target: str) -> None:
    for name in ("edited", "gone"):
        (source / name).write_text(secrets.token_hex())
    with mount(this_host(), source, target, pyc="as-is", fetch="demand") as mounted:
        (source / "edited").write_text("edited")
        (source / "gone").unlink()
        with pytest.raises(StaleSourceError) as caught:
            mounted.complete().get()
        first = f"{source}: 1 file changed since the index: edited; 1 file removed since the index: gone"
        assert str(caught.value).splitlines()[0] == first
        assert (caught.value.paths, caught.value.removed) == (["edited", "gone"], ["gone"])
        assert "EIO" in read(ERROR, f"{target}/gone")
        assert mounted.status().get().hosts[0].last_error == "gone: the file was removed since the index was made"


def test_wrong_arguments_are_named(source: Path, tmp_path: Path, target: str) -> None:
    with pytest.raises(ValueError, match="'relative' is no absolute path"):
        mount(this_host(), source, "relative")
    with pytest.raises(FileNotFoundError, match="missing"):
        mount(this_host(), tmp_path / "missing", target)
    with pytest.raises(NotADirectoryError, match="weights"):
        mount(this_host(), source / "weights", target)
    with pytest.raises(ValueError, match="fetch is 'some'"):
        mount(this_host(), source, target, fetch="some")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="is the source itself"):
        mount(this_host(), source).ready.get()
    assert not os.path.exists(target)


def test_occupied_mount_point_is_refused(source: Path, tmp_path: Path, target: str) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with mount(this_host(), source, target):
        with pytest.raises(FsError, match=f"of .*{source}") as caught:
            mount(this_host(), other, target).ready.get()
        assert caught.value.code == "fs_busy"
        assert read(CONTENT, f"{target}/package/module.py") == "VALUE = 1"


def test_two_mounts_of_a_program_are_counted(source: Path, target: str) -> None:
    for first_closed in (0, 1):
        pair = [mount(this_host(), source, target, pyc="as-is") for _ in range(2)]
        for mounted in pair:
            mounted.ready.get()
        pair.pop(first_closed).close().get()
        (source / "package" / "module.py").write_text(f"VALUE = '{secrets.token_hex()}'\n")
        assert pair[0].refresh().get().changed == 1
        assert read(CONTENT, f"{target}/package/module.py") == (source / "package" / "module.py").read_text().strip()
        pair[0].complete().get()
        pair[0].close().get()
        assert not os.path.ismount(target)


def test_failed_mount_cannot_be_refreshed(source: Path, target: str) -> None:
    failed = mount(this_host(), source, f"{source}/weights/below")
    for action in (failed.ready.get, lambda: failed.refresh().get(), lambda: failed.complete().get()):
        with pytest.raises(OSError, match="weights"):
            action()


NO_ROOM = """
import errno, subprocess, sys
from monarch.actor import this_host
from monarch.fs import FsError, mount
source, target = sys.argv[1:]
with mount(this_host(), source, target, pyc="as-is", fetch="demand") as mounted:
    try:
        mounted.complete().get()
    except FsError as e:
        print(e.errno == errno.ENOSPC, str(e).splitlines()[0], e.hint)
    subprocess.run(["cmp", f"{source}/weights", f"{target}/weights"], check=True, timeout=20)
"""


def test_full_store_is_named(source: Path, tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONARCH_FS_STORE_DIR", str(tmp_path / "store"))
    monkeypatch.setenv("MONARCH_FS_STORE_BYTES", str(1 << 20))
    printed = read(NO_ROOM, source, target)
    assert printed.startswith(f"True {target} on ") and "bytes have no room in the store of the host raise `fs_store_bytes`" in printed


def test_closed_mount_is_named(source: Path, target: str) -> None:
    mounted = mount(this_host(), source, target)
    mounted.ready.get()
    mounted.close().get()
    mounted.close().get()
    with pytest.raises(FsError, match="the mount is closed"):
        mounted.refresh()


def test_remotemount_is_a_drop_in(source: Path, target: str) -> None:
    handler = remotemount(this_host(), str(source), target)
    assert (handler.sourcepath, handler.mntpoint) == (str(source), target)
    handler.open(via_gateway=True)
    assert read(NAMES, f"{target}/package") == "['module.py']"
    (source / "package" / "more.py").write_text("")
    handler.refresh("ignored")
    assert read(NAMES, f"{target}/package") == "['module.py', 'more.py']"
    handler.close()
    handler.close()
    assert not os.path.ismount(target)


PUSHED = """
import sys
from monarch.actor import this_host
from monarch.fs import FsError, mount, push
source, target, other = sys.argv[1:]
with mount(this_host(), source, target):
    try:
        push(this_host(), other, target).get()
    except FsError as e:
        print(e)
"""


def test_push_to_a_mount_names_the_reason(source: Path, target: str, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "d").mkdir(parents=True)
    (other / "new").write_text("x")
    # In another process: a service of this process has its store until the last test.
    assert "Read-only file system" in read(PUSHED, source, target, other)


UNMOUNTED = """
import subprocess, sys, time
from monarch.actor import this_host
from monarch.fs import FsError, mount
source, target = sys.argv[1:]
shown = mount(this_host(), source, target)
shown.ready.get()
assert shown.refresh().get().changed == 0
# The service lists the directories of a new mount, which is in use meanwhile.
while subprocess.run(["umount", target]).returncode:  # polls: until the listing is over, for which there is no event
    time.sleep(0.05)  # sleeps: until the next attempt
try:
    print(shown.refresh().get())
except FsError as e:
    print(e)
"""


def test_refresh_of_a_foreignly_unmounted_mount_fails(source: Path, target: str) -> None:
    assert f"{target} on {os.uname().nodename}: " in read(UNMOUNTED, source, target)
