"""SkyPilotJob with the real SkyPilot on the real Kubernetes: launch, calls, and kill.

The pods run on what the nodes have: no image is pulled, and the packages of SkyPilot's runtime come through a proxy.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import skypilot_server
from connect_proxy import ConnectProxy
from kubernetes_jobs import host_template
from skypilot_server import USER_HASH, SkyPilotServer, uv_cache, write_uv

from tools.k8s.build import KUBE
from tools.k8s.cluster import KubeCluster
from tools.k8s.images import HOST

# The test takes a minute on an idle machine: SkyPilot installs itself on the nodes.
pytestmark = pytest.mark.timeout(1500)
JOINED_S = 1200.0
RESOURCES = {"infra": "kubernetes", "cpus": 1, "memory": "1+", "image_id": f"docker:{HOST}"}
# Programs that SkyPilot runs on nodes, and would install there.
PROGRAMS = ("sudo", "rsync", "curl", "wget", "nc", "gcc", "patch", "lspci", "sshd", "socat")
# The folder of programs of a pod's user, root.
_PROGRAMS = Path("/", "root", ".local", "bin")
# The additional set-up beside the mounts of other tests: SkyPilot sets up an sshd, so `/etc` and written files are the pod's own.
_COPY = "cd /node/etc && /busybox cp -a . /own/etc/ && /busybox rm -f /own/etc/ssh/ssh_host*; /busybox mkdir -p /own/etc/apt"


# Runs like another program of the user: SSH takes the home of its user from /etc/passwd, whatever HOME is.
_AT_HOME = 'mount --bind "$1" /etc/passwd && shift && exec "$@"'
_CLIENT = """
import json, os, sys
from monarch.actor import Actor, endpoint
from monarch.job.skypilot import SkyPilotJob

class Where(Actor):
    @endpoint
    def place(self) -> tuple[str, str]:
        return os.environ["SKYPILOT_NODE_RANK"], os.uname().nodename

if __name__ == "__main__":
    resources, seconds = json.loads(sys.argv[1]), float(sys.argv[2])
    job = SkyPilotJob({"a": 1, "b": 1}, resources, "c1", python_exe=sys.executable, join_timeout=seconds)
    try:
        state = job.state(cached_path=None)
        places = [state[mesh].spawn_procs().spawn("where", Where).place.call_one().get(seconds) for mesh in ("a", "b")]
        phases = [host.phase for host in job.status().hosts]
        print(json.dumps({"places": places, "phases": phases, "secret": job._secret().hex(), "plan": job.plan().text}), flush=True)
        sys.stdin.read()
    finally:
        job.kill()
"""


def _pod_config(uv: Path) -> dict[str, Any]:
    template = host_template()["spec"]
    (container,) = template["containers"]
    mounts: list[dict[str, Any]] = container["volumeMounts"]
    volumes: list[dict[str, Any]] = template["volumes"]
    mounts += [
        {"name": "etc", "mountPath": "/etc"},
        {"name": "dpkg", "mountPath": "/var/lib/dpkg", "readOnly": True},
        {"name": "uv", "mountPath": str(_PROGRAMS)},
        {"name": "uv-cache", "mountPath": str(uv_cache())},
    ]
    volumes += [
        {"name": "etc", "emptyDir": {}},
        {"name": "node-etc", "hostPath": {"path": "/etc"}},
        {"name": "dpkg", "hostPath": {"path": "/var/lib/dpkg"}},
        {"name": "uv", "hostPath": {"path": str(uv)}},
        {"name": "uv-cache", "hostPath": {"path": str(uv_cache())}},
    ]
    copied = [{"name": "node-etc", "mountPath": "/node/etc", "readOnly": True}, {"name": "etc", "mountPath": "/own/etc"}]
    first = {"name": "etc", "image": HOST, "imagePullPolicy": "Never", "command": ["/busybox", "sh", "-c", _COPY], "volumeMounts": copied}
    node = {"name": "ray-node", "imagePullPolicy": "Never", "volumeMounts": mounts}
    return {"spec": {"initContainers": [first], "containers": [node], "volumes": volumes}}


@pytest.fixture
def sky(cluster: KubeCluster, tmp_path: Path) -> Iterator[SkyPilotServer]:
    """SkyPilot's API server, for clients that see `accounts` as /etc/passwd."""
    if lacking := skypilot_server.missing():
        pytest.skip(lacking)
    if absent := [program for program in PROGRAMS if shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None]:
        pytest.skip(f"there is no {', '.join(absent)}: tools/system_packages.sh skypilot")
    path = f"{KUBE.folder / 'bin'}:{os.environ['PATH']}"
    server = SkyPilotServer(tmp_path / "sky", env={"KUBECONFIG": str(cluster.kubeconfig), "PATH": path})
    uv = server.directory / "uv"
    uv.mkdir(parents=True)
    uv_cache().mkdir(parents=True, exist_ok=True)
    shutil.copy(server.python.with_name("uv"), uv / "uv.real")
    settings = {"kubernetes": {"networking": "portforward", "provision_timeout": 120, "pod_config": _pod_config(uv)}}
    (server.home / ".sky").mkdir(parents=True)
    (server.home / ".sky" / "config.yaml").write_text(json.dumps(settings))
    with ConnectProxy(cluster.machine_address) as proxy:
        write_uv(uv / "uv", _PROGRAMS / "uv.real", os.path.realpath(sys.executable), HTTPS_PROXY=proxy.url)
        with server:
            yield server


def test_life_cycle(cluster: KubeCluster, sky: SkyPilotServer, tmp_path: Path) -> None:
    """Hosts join and answer, and after `kill` nothing is left in the cluster."""
    (tmp_path / "client.py").write_text(_CLIENT)
    command = ["unshare", "--mount", "sh", "-c", _AT_HOME, "sh", str(sky.accounts)]
    command += [sys.executable, "client.py", json.dumps(RESOURCES), str(JOINED_S)]
    paths = os.pathsep.join(filter(None, sys.path))
    env = {**os.environ, **sky.env, "MONARCH_SKYPILOT_PYTHON": str(sky.python), "PYTHONPATH": paths}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as client:
        assert client.stdin is not None and client.stdout is not None and client.stderr is not None
        line = client.stdout.readline()
        assert line, client.stderr.read() + sky.log()
        found = json.loads(line)
        described = cluster.kubectl("get", "pods,secrets,configmaps", "-A", "-o", "json")
        client.stdin.close()
        assert client.wait() == 0, client.stderr.read()
    assert [rank for rank, _ in found["places"]] == ["0", "1"] and len({node for _, node in found["places"]}) == 2
    assert found["phases"] == ["joined", "joined"]
    assert found["secret"] not in described and found["secret"] not in found["plan"]
    listed = json.loads(cluster.kubectl("get", "pods", "-n", "default", "-o", "json"))["items"]
    assert [pod["metadata"]["name"] for pod in listed if USER_HASH in pod["metadata"]["name"]] == []
