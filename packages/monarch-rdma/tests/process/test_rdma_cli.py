"""`monarch rdma probe` and `bench`, and the report of `monarch doctor`."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from monarch.rdma import probe
from monarch.rdma._machine.probe import direct_copies

ORDER = ["local", "shm", "cma", "shm-staged", "cuda-ipc"]
RUN = [sys.executable, "-W", "error", "-c", "import sys; from monarch.rdma._cli import command; command(sys.argv[1:])"]


def test_probe():
    rows = probe()
    assert [row.name for row in rows][:5] == ORDER
    assert [row.name for row in rows][-2:] == ["tcp", "routed"]
    for row in rows:
        assert row.usable or row.reason
    assert rows[0].usable and rows[-1].usable


def test_command():
    text = subprocess.run([*RUN, "probe"], capture_output=True, text=True, check=True).stdout
    assert [line.split()[0] for line in text.splitlines()][:5] == ORDER
    assert text.splitlines()[-1].startswith("locked memory: ")
    table = json.loads(subprocess.run([*RUN, "probe", "--json"], capture_output=True, text=True, check=True).stdout)
    assert [row["name"] for row in table] == [row.name for row in probe()]


def test_obstacles_of_direct_copies_are_named(tmp_path):
    code = """
import os, sys
sys.path.insert(0, sys.argv[1])
from seccomp import refuse_direct_copies
from monarch.rdma._machine.probe import direct_copies
from monarch.rdma._doctor import lines
refuse_direct_copies()
print(direct_copies())
for subject, text, todo in lines():
    print(subject, bool(todo), text)
"""
    from memory_actors import __file__ as here

    folder = here.rpartition("/")[0]
    done = subprocess.run([sys.executable, "-W", "error", "-c", code, folder], capture_output=True, text=True, check=True)
    first, second, third = done.stdout.splitlines()
    assert first.startswith("process_vm_readv: Operation not permitted")
    assert second.startswith("rdma False usable: local, shm, shm-staged, tcp, routed; not usable: cma")
    assert third.startswith("rdma cma True process_vm_readv")
    scope = tmp_path / "ptrace_scope"
    scope.write_text("0\n")
    assert direct_copies(str(scope)) == ""


def test_bench_measures_every_path_that_is_usable():
    usable = [row.name for row in probe() if row.usable and row.name in ORDER[:4]]
    done = subprocess.run([*RUN, "bench", "--json", "--size", "4k", "--size", "100001", "--size", "4096"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    rows = json.loads(done.stdout)
    copies = [("memcpy", "copy"), *((path, what) for path in usable for what in ("read", "write"))]
    assert [(row["nbytes"], row["path"], row["operation"]) for row in rows] == [(n, *copy) for n in (4096, 100_001) for copy in copies]
    for row in rows:
        assert row["times"] >= 3 and row["seconds"] > 0
        assert row["bytes_per_second"] == pytest.approx(row["nbytes"] / row["seconds"])


def test_bench_of_one_path():
    done = subprocess.run([*RUN, "bench", "--size", "1MiB", "--path", "local"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    head, *rows = done.stdout.splitlines()
    assert head.split() == ["size", "path", "copy", "time", "bandwidth"]
    assert [row.split()[:4] for row in rows] == [
        ["1", "MiB", "memcpy", "copy"],
        ["1", "MiB", "local", "read"],
        ["1", "MiB", "local", "write"],
    ]
    assert all(row.endswith(" GB/s") for row in rows)


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        (["--size", "0"], 2, "'0': expected 1 byte at least"),
        (["--size", "64 MiBs"], 2, "'64 MiBs' is no number of bytes: write 4096, 4KiB, 64MiB or 1.5GiB"),
        (["--size", "1EiB"], 2, "no number of bytes"),
        (["--size", "100TiB"], 1, "copies of 102,400 GiB need 219,902,325,555,200 bytes of memory, "),
        (
            ["--path", "carrier-pigeon"],
            1,
            "path carrier-pigeon cannot be measured: there is no such path here\nhint: measured can be local, ",
        ),
        (["--path", "local", "--path", "routed"], 1, "path routed cannot be measured: "),
    ],
)
def test_bench_of_what_cannot_be_measured(given, code, words):
    done = subprocess.run([*RUN, "bench", *given], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr and "Traceback" not in done.stderr


def test_bench_names_the_unused_path():
    """Where a path that looks usable does not come about: the kernel changes its mind between the look and the copy."""
    code = """
import sys
sys.path.insert(0, sys.argv[1])
from seccomp import refuse_direct_copies
from monarch.rdma import _bench
from monarch.rdma._cli import command
real = _bench.measure
def measure(paths, sizes):
    refuse_direct_copies()
    return real(paths, sizes)
_bench.measure = measure
command(["bench", "--path", "cma", "--size", "4k"])
"""
    from memory_actors import __file__ as here

    done = subprocess.run([sys.executable, "-W", "error", "-c", code, here.rpartition("/")[0]], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "Error: bench of 4,096 bytes: the path to the memory is shm-staged, not cma\n"
