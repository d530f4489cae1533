"""Programs and directories that one of several hosts lacks, which have file systems of their own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tools.netns.cluster import Cluster, Worker
from tools.netns.requirement import need_namespaces

CLIENT = """
import json, os, sys
import monarch.actor
from monarch.actor import attach_to_workers
from monarch.spmd import SPMDError, run
monarch.actor.unhandled_fault_hook = lambda failure: None
order = json.loads(sys.argv[1])
hosts = attach_to_workers(workers=order["workers"], secret=os.environ["TEST_SECRET"])
found = []
for command, workdir in order["launches"]:
    try:
        run(hosts, command, workdir=workdir).result.get()
        found.append("")
    except SPMDError as error:
        found.append(str(error))
print(json.dumps(found), flush=True)
os._exit(0)
"""


@pytest.mark.timeout(90)
def test_error_names_the_host_without_the_program(folder: Path, tmp_path: Path) -> None:
    need_namespaces()
    code = folder / "code"
    (code / "sub").mkdir(parents=True)
    (folder / "ends.py").write_text("")
    (code / "waits.py").write_text("import signal\nsignal.pause()\n")
    (code / "__main__.py").write_text("import signal\nsignal.pause()\n")
    (code / "tool").write_text("#!/bin/sh\nexec sleep 600\n")
    (code / "tool").chmod(0o755)
    client = tmp_path / "client.py"
    client.write_text(CLIENT)
    launches = [
        (["torchrun", "--nproc-per-node=2", "code/waits.py"], str(folder)),
        (["torchrun", "--no-python", str(code / "tool")], str(folder)),
        (["torchrun", "--run-path", "code"], str(folder)),
        (["torchrun", "../../ends.py"], str(code / "sub")),
        (["torchrun", "ends.py"], str(folder)),
    ]
    with Cluster(3, tmp_path, "") as cluster:
        cluster.workers = [Worker(host, cluster.env, cluster.secret) for host in cluster.hosts]
        second = cluster.hosts[1]
        # Another, empty file system is mounted there, on this host alone.
        second.run("mount", "-t", "tmpfs", "tmpfs", str(code))
        order = {"workers": [worker.address for worker in cluster.workers], "launches": launches}
        done = cluster.client_host.run(*(sys.executable, str(client), json.dumps(order)), env=cluster.env, check=False, capture_output=True)
        assert done.returncode == 0, done.stdout + done.stderr
    script, tool, main, workdir, whole = json.loads(done.stdout.splitlines()[-1])
    lacks = f"the program cannot be started on {{}} ranks, on {second.name}: "
    assert script == lacks.format("2 of 6") + f"program 'code/waits.py' is not on this host; the directory is {folder}"
    assert tool == lacks.format("1 of 3") + f"cannot start '{code / 'tool'}': No such file or directory (ENOENT)"
    assert workdir == lacks.format("1 of 3") + f"the directory '{code / 'sub'}' is not on this host"
    # The folder is there, and only its interpreter sees that a file is missing.
    assert main.startswith(f"rank 1 (hosts=1, gpus=0, {second.name}, pid ") and "can't find '__main__' module in 'code'" in main
    assert whole == ""
