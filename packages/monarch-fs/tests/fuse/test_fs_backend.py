"""The back end over pyfuse3 with a tree in memory: what readers see, and how many requests it takes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from fs_memory_tree import BIG
from fs_mounted import LIMIT, mounted, output

from monarch.fs._tree.operations import AUTO, DEVICE, PYFUSE3

pytestmark = pytest.mark.usefixtures("back_end")

# Requests that the kernel sends without a reader.
_UNASKED = {"init", "forget", "batch_forget", "destroy", "opens", "reason", "backend"}


def _requests(server: object) -> dict[str, int]:
    return {name: count for name, count in server.ask("counters").items() if name not in _UNASKED}  # type: ignore[attr-defined]


def test_readers_see_the_tree(tmp_path: Path) -> None:
    with mounted(tmp_path / "m") as (mount, server):
        code = """
import hashlib, mmap, stat
print(open(t + "/small").read(), hashlib.sha256(open(t + "/big", "rb").read()).hexdigest()[:8], open(t + "/empty").read() == "")
print(len(os.listdir(t + "/dir")), os.readlink(t + "/link"), open(t + "/link").read(), os.stat(t + "/small").st_mtime_ns)
with open(t + "/big", "rb") as f:
    m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
    print(m[1000000:1000004].hex(), len(m))
    w = os.memfd_create("w"); print(os.sendfile(w, f.fileno(), 256, 4096), os.pread(w, 4, 0).hex())
print(os.listxattr(t + "/small"), os.getxattr(t + "/small", "user.colour"), os.statvfs(t).f_blocks, os.statvfs(t).f_namemax)
writes = (lambda: open(t + "/small", "w"), lambda: os.mkdir(t + "/x"))
for attempt in (*writes, lambda: os.getxattr(t + "/small", "user.b"), lambda: open(t + "/no"), lambda: open(t + "/raises").read()):
    try: attempt(); print("worked")
    except OSError as e: print(e.errno, end=" ")
"""
        import hashlib

        assert output(code, mount.target).split("\n") == [
            f"hello {hashlib.sha256(BIG).hexdigest()[:8]} True",
            "300 small hello 1700000000123456789",
            f"{BIG[1000000:1000004].hex()} {len(BIG)}",
            f"4096 {BIG[256:260].hex()}",
            "['user.colour'] b'blue' 2560 255",
            "30 30 61 2 5",
        ]
        assert subprocess.run([mount.target / "program"], timeout=LIMIT, check=False).returncode == 0
        assert subprocess.run([mount.target / "script"], timeout=LIMIT, check=True, capture_output=True).stdout.startswith(b"ran ")


def test_cached_data_needs_no_request(tmp_path: Path) -> None:
    code = """
import mmap
for name in ("small", "big", "dir/f001", "link", "empty"):
    fd = os.open(t + "/" + name, os.O_RDONLY); os.read(fd, 1 << 23); os.fstat(fd); os.close(fd); os.stat(t + "/" + name)
assert not os.path.exists(t + "/absent")
assert len(os.listdir(t + "/dir")) == 300 and len(os.listdir(t)) == 10
assert all(os.stat(f"{t}/dir/f{n:03}") for n in range(300))
fd = os.open(t + "/big", os.O_RDONLY); m = mmap.mmap(fd, 0, prot=mmap.PROT_READ); assert sum(m[::4096]) >= 0
"""
    with mounted(tmp_path / "m") as (mount, server):
        output(code, mount.target)
        before = _requests(server)
        assert before["open"] == before["opendir"] == 1
        output(code, mount.target)
        assert _requests(server) == before
        assert not server.ask("counters")["opens"]
        # A buffered open checks whether the file is a terminal; this is counted although libfuse would answer it.
        output("open(t + '/small').read()", mount.target)
        assert _requests(server)["ioctl"] == 1


def test_without_interposer_opens_are_requests(tmp_path: Path) -> None:
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "fs-interposer").write_text("no directory")
    with mounted(tmp_path / "m", "bare", environment={"MONARCH_HOME": str(folder), "BACKEND": PYFUSE3}) as (mount, server):
        assert output("print(open(t + '/small').read(), len(os.listdir(t + '/dir')))", mount.target) == "hello 300"
        first = server.ask("counters")
        assert first["opens"] and str(folder) in first["reason"]
        output("open(t + '/small').read()", mount.target)
        again = server.ask("counters")
        assert (again["open"], again["read"]) == (first["open"] + 1, first["read"])


def test_auto_takes_what_can_be_loaded(tmp_path: Path) -> None:
    pytest.importorskip("pyfuse3")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "fs-interposer").write_text("no directory")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "pyfuse3.py").write_text("raise ImportError('libfuse3.so.3: cannot open shared object file')")
    for flags, environment, expected in (
        ((), {}, PYFUSE3),
        (("bare",), {"MONARCH_HOME": str(tmp_path / "home")}, DEVICE),
        ((), {"PYTHONPATH": str(tmp_path / "broken")}, DEVICE),
    ):
        with mounted(tmp_path / "m", *flags, environment={"BACKEND": AUTO, **environment}) as (mount, server):
            assert output("print(open(t + '/small').read())", mount.target) == "hello"
            counters = server.ask("counters")
            assert (counters["backend"], counters["opens"]) == (expected, False)


def test_invalidated_names_and_pages_are_new(tmp_path: Path) -> None:
    with mounted(tmp_path / "m") as (mount, server):
        code = "print(open(t + '/small').read(), os.path.exists(t + '/made'), len(os.listdir(t)))"
        assert output(code, mount.target) == "hello False 10"
        assert server.ask("change small other") is None
        assert server.ask("new made") is None
        assert output(code, mount.target) == "other True 11"


def test_stored_pages_are_read_without_request(tmp_path: Path) -> None:
    with mounted(tmp_path / "m") as (mount, server):
        # Otherwise a notice before the negotiation is refused.
        output("os.stat(t)", mount.target)
        assert server.ask("store big")["errno"] == 2
        output("os.listdir(t)", mount.target)
        assert server.ask("store big") is None
        output("fd = os.open(t + '/big', os.O_RDONLY)\nassert len(os.read(fd, 1 << 23)) == 4 << 20", mount.target)
        assert "read" not in _requests(server)


def test_live_file_grows_for_its_reader(tmp_path: Path) -> None:
    with mounted(tmp_path / "m", "live") as (mount, server):
        tail = subprocess.Popen(["tail", "-s", "0.02", "-f", mount.target / "grows"], stdout=subprocess.PIPE, text=True)
        try:
            assert tail.stdout is not None and tail.stdout.readline() == "first\n"
            for line in ("second", "third"):
                server.ask(f"append grows {line}")
                assert tail.stdout.readline() == line + "\n"
        finally:
            tail.kill()
            tail.communicate()
        assert output("try: open(t + '/small', 'w')\nexcept OSError as e: print(e.errno)", mount.target) == "13"


def test_read_ends_at_its_time_limit(tmp_path: Path) -> None:
    with mounted(tmp_path / "m", "short") as (mount, server):
        assert output("try: open(t + '/stuck').read()\nexcept OSError as e: print(e.errno)", mount.target) == "5"
        assert output("print(open(t + '/small').read())", mount.target) == "hello"
