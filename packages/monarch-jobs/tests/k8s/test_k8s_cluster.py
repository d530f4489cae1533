"""The cluster that the tests run on: what it has, what runs in its pods, and that nothing is left of it."""

from __future__ import annotations

import copy
import json
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import monarch.actor
from tools.k8s.administration import Administration
from tools.k8s.cluster import KubeCluster, missing
from tools.k8s.images import Image, write_root_image
from tools.netns.namespace import living
from tools.project import ROOT

Template = dict[str, Any]


def pod(template: Template, name: str, code: str, node: int) -> str:
    """The manifest of a pod on that node whose worker runs Python code."""
    spec: Template = copy.deepcopy(template["spec"])
    spec.update(restartPolicy="Never", nodeSelector={"kubernetes.io/hostname": f"node{node}"})
    spec["containers"][0]["command"] = ["python", "-c", code]
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})


def succeed(cluster: KubeCluster, namespace: str, *names: str) -> None:
    pods = [f"pod/{name}" for name in names]
    cluster.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "-n", namespace, "--timeout=60s", *pods, timeout=90)


def test_two_nodes_are_ready(cluster: KubeCluster) -> None:
    nodes = json.loads(cluster.kubectl("get", "nodes", "-o", "json"))["items"]
    assert [node["metadata"]["name"] for node in nodes] == ["node1", "node2"]
    for node in nodes:
        assert {condition["type"]: condition["status"] for condition in node["status"]["conditions"]}["Ready"] == "True"
        assert node["status"]["nodeInfo"]["kubeletVersion"] == "v1.36.3"


def test_only_the_owner_reads_the_administrators_kubeconfig(cluster: KubeCluster) -> None:
    assert stat.S_IMODE(cluster.kubeconfig.stat().st_mode) == 0o600


def test_pod_runs_this_checkout(cluster: KubeCluster, namespace: str, pod_template: Template) -> None:
    code = "import socket, monarch.actor; print(socket.gethostname(), monarch.actor.Actor.__module__)"
    for node in (1, 2):
        cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=pod(pod_template, f"p{node}", code, node))
    succeed(cluster, namespace, "p1", "p2")
    for name in ("p1", "p2"):
        assert cluster.kubectl("logs", name, "-n", namespace).split() == [name, monarch.actor.Actor.__module__]


def test_user_has_only_the_rights_of_its_roles(cluster: KubeCluster, namespace: str, tmp_path: Path) -> None:
    config = cluster.user_kubeconfig(tmp_path / "reader", "reader")
    assert "Forbidden" in cluster.try_kubectl("get", "pods", "-n", namespace, f"--kubeconfig={config}").stderr
    cluster.kubectl("create", "rolebinding", "reader", "--clusterrole=view", "--user=reader", "-n", namespace)
    cluster.kubectl("wait", "--for=create", "rolebinding/reader", "-n", namespace)
    assert "No resources found" in cluster.try_kubectl("get", "pods", "-n", namespace, f"--kubeconfig={config}").stderr


def test_killed_node_is_seen_and_recovers(cluster: KubeCluster) -> None:
    cluster.node_kill(2)
    cluster.kubectl("wait", "--for=condition=Ready=Unknown", "node/node2", "--timeout=60s", timeout=90)
    cluster.node_up(2)
    assert cluster.node_ready(2)


def test_silent_kubelet_and_partitioned_node_recover(cluster: KubeCluster) -> None:
    cluster.kubelet_kill(1)
    cluster.partition(2)
    cluster.kubectl("wait", "--for=condition=Ready=Unknown", "node/node1", "node/node2", "--timeout=90s", timeout=120)
    cluster.restore()
    assert cluster.node_ready(1)
    assert cluster.node_ready(2)


def test_image_made_of_a_folder_runs(cluster: KubeCluster, namespace: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "bin").mkdir(parents=True)
    shutil.copy("/bin/busybox", root / "bin" / "echo")
    write_root_image(tmp_path / "made.tar", root, "localhost/made:1", Image(["/bin/echo", "made here"]))
    cluster.import_image(tmp_path / "made.tar")
    cluster.kubectl("run", "made", "--image=localhost/made:1", "--image-pull-policy=Never", "--restart=Never", "-n", namespace)
    succeed(cluster, namespace, "made")
    assert cluster.kubectl("logs", "made", "-n", namespace) == "made here\n"


def test_restarted_api_server_keeps_its_objects(cluster: KubeCluster, namespace: str) -> None:
    cluster.api_server_kill()
    assert cluster.try_kubectl("get", "namespace", namespace).returncode
    cluster.api_server_up()
    cluster.kubectl("get", "namespace", namespace)


def traces(directory: Path) -> set[str]:
    """What there is of clusters on this machine, besides files: processes, mounts, links, routes, rules, control groups, settings."""
    found = {f"namespace {name}" for name in living() if name.startswith("monarch-k8s")}
    found |= {f"mount {line}" for line in Path("/proc/self/mounts").read_text().splitlines() if str(directory) in line}
    for argv in (["ip", "-o", "link"], ["ip", "route"], ["iptables-save"]):
        lines = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
        found |= {f"{argv[0]} {line.split('@')[0]}" for line in lines if any(word in line for word in ("mk8s", "KUBE", "cni0"))}
    found |= {f"group {path}" for path in Path("/sys/fs/cgroup").glob("*/monarch-k8s*")}
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(directory).encode() in (words := command.read_bytes()):
                found.add(f"process {words}")
        except OSError:
            continue  # ended meanwhile
    for setting in ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops"):
        found.add(f"{setting}={Path('/proc/sys', setting).read_text()}")
    return found


def test_two_clusters_leave_nothing_behind(cluster: KubeCluster, tmp_path: Path, pod_template: Template) -> None:
    directory = tmp_path / "second"
    command = [sys.executable, "-m", "tools.k8s"]
    before = traces(directory)
    # The command returns when no process has its output open any more: the cluster does not have it open.
    argv = [*command, "up", str(directory), "--nodes", "1"]
    up = subprocess.run(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert up.returncode == 0, up.stdout
    try:
        second = Administration(directory)
        assert f"export KUBECONFIG={second.kubeconfig}\n" in up.stdout
        assert second.server != cluster.server
        second.kubectl("apply", "-f", "-", stdin=pod(pod_template, "sleeper", "import signal; signal.pause()", 1))
        second.kubectl("wait", "--for=condition=Ready", "pod/sleeper", "--timeout=60s", timeout=90)
        assert cluster.try_kubectl("get", "pod", "sleeper").returncode
        assert traces(directory) > before
        with pytest.raises(RuntimeError, match="second: a cluster is up in this folder"):
            KubeCluster(directory).up()
        assert second.try_kubectl("get", "pod", "sleeper").returncode == 0
    finally:
        subprocess.run([*command, "down", str(directory)], cwd=ROOT, check=True)
    assert traces(directory) == before
    assert sorted(path.name for path in directory.iterdir()) == ["lock", "log", "owner", "owner.log"]


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_folder_invisible_to_nodes_is_refused() -> None:
    with pytest.raises(ValueError, match="/run/somewhere"):
        KubeCluster(Path("/run/somewhere"))
