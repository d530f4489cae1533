"""`monarch rdma probe`, and what `monarch doctor` says."""

from __future__ import annotations

import json
import subprocess
import sys

from monarch.rdma import probe
from monarch.rdma._probe import direct_copies

ORDER = ["local", "shm", "cma", "shm-staged", "cuda-ipc"]


def test_probe():
    rows = probe()
    assert [row.name for row in rows][:5] == ORDER
    assert [row.name for row in rows][-2:] == ["tcp", "routed"]
    for row in rows:
        assert row.usable or row.reason
    assert rows[0].usable and not rows[-1].usable


def test_command():
    run = [sys.executable, "-W", "error", "-c"]
    code = "import sys; from monarch.rdma._cli import command; command(sys.argv[1:])"
    text = subprocess.run([*run, code, "probe"], capture_output=True, text=True, check=True).stdout
    assert [line.split()[0] for line in text.splitlines()][:5] == ORDER
    assert text.splitlines()[-1].startswith("locked memory: ")
    table = json.loads(subprocess.run([*run, code, "probe", "--json"], capture_output=True, text=True, check=True).stdout)
    assert [row["name"] for row in table] == [row.name for row in probe()]


def test_what_is_in_the_way(tmp_path):
    code = """
import os, sys
sys.path.insert(0, sys.argv[1])
from seccomp import refuse_direct_copies
from monarch.rdma._probe import direct_copies
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
    assert second.startswith("rdma False usable: local, shm, shm-staged; not usable: cma")
    assert third.startswith("rdma cma True process_vm_readv")
    scope = tmp_path / "ptrace_scope"
    scope.write_text("0\n")
    assert direct_copies(str(scope)) == ""
