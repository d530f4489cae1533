"""`monarch k8s` on a real cluster: rights that are granted, checks, a script in a pod, and that nothing is left of it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from command import ARGV
from eventually import eventually

from monarch.job._cli import k8s_run
from monarch.job.kubernetes.access.client import Cluster
from monarch.job.kubernetes.access.config import KubeConfig
from monarch.job.kubernetes.manifests import rbac
from tools.k8s.cluster import KubeCluster

WHAT_A_RUN_MAKES = "jobs,pods,roles,rolebindings,secrets,services,networkpolicies,statefulsets"


COMMAND = [*ARGV, "k8s"]


def monarch(*words: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=timeout)


@pytest.fixture
def template(pod_template: dict[str, Any], tmp_path: Path) -> str:
    path = tmp_path / "template.json"
    path.write_text(json.dumps(pod_template))
    return str(path)


def script(tmp_path: Path, text: str) -> str:
    path = tmp_path / "script.py"
    path.write_text(text)
    return str(path)


def left(cluster: KubeCluster, namespace: str) -> list[str]:
    """What is in the namespace besides what every namespace has."""
    found = cluster.kubectl("get", f"{WHAT_A_RUN_MAKES},configmaps,serviceaccounts", "-n", namespace, "-o", "name").split()
    return [name for name in found if name not in ("configmap/kube-root-ca.crt", "serviceaccount/default")]


def test_printed_manifests_are_accepted_by_the_server(cluster: KubeCluster, namespace: str) -> None:
    for words in (
        *(["rbac", "--mode", mode, "--print", "-n", namespace] for mode in ("native", "attach", "monarchmesh")),
        ["rbac", "--user", "ada", "--print", "-n", namespace],
        ["install", "--print"],
        ["install", "--operator", "--print", "-n", namespace, "--image", "localhost/operator:1"],
    ):
        done = monarch(*words)
        assert (done.returncode, done.stderr) == (0, ""), words
        cluster.kubectl("apply", "--server-side", "--validate=strict", "--dry-run=server", "-f", "-", stdin=done.stdout)


def test_install_and_rbac_can_be_repeated(cluster: KubeCluster, namespace: str) -> None:
    for _ in range(2):
        done = monarch("install")
        assert (done.returncode, done.stderr) == (0, ""), done
        assert done.stdout == "applied CustomResourceDefinition monarchmeshes.monarch.pytorch.org\n"
        done = monarch("rbac", "-n", namespace)
        assert done.stdout.splitlines() == [
            f"applied ServiceAccount monarch-client in {namespace}",
            f"applied Role monarch-client in {namespace}",
            f"applied RoleBinding monarch-client in {namespace}",
        ]
    role = json.loads(cluster.kubectl("get", "role", "monarch-client", "-n", namespace, "-o", "json"))
    assert role["rules"] == rbac.rules("native")


def test_doctor_names_missing_rights_until_they_are_granted(cluster: KubeCluster, namespace: str, tmp_path: Path) -> None:
    config = str(cluster.user_kubeconfig(tmp_path / "ada", "ada"))
    done = monarch("doctor", "--kubeconfig", config, "-n", namespace, "--json")
    found = {check["name"]: check for check in json.loads(done.stdout)}
    assert done.returncode == 1
    assert found["user"]["detail"].startswith("ada (")
    assert found["right jobs.batch"]["state"] == "FAIL" and "no right to create" in found["right jobs.batch"]["detail"]
    assert f"monarch k8s rbac --mode native --namespace {namespace}" in found["right pods/portforward"]["detail"]
    assert monarch("rbac", "-n", namespace, "--user", "ada").returncode == 0
    lines = eventually("the rights are in force", lambda: _healthy(config, namespace))
    assert all(re.match(r"(ok   |info ) \S", line) for line in lines)


def _healthy(config: str, namespace: str) -> list[str]:
    done = monarch("doctor", "--kubeconfig", config, "-n", namespace)
    return done.stdout.splitlines() if done.returncode == 0 else []


def test_doctor_shows_quotas_and_missing_kinds(cluster: KubeCluster, namespace: str) -> None:
    cluster.kubectl("create", "quota", "small", "--hard=pods=0", "-n", namespace)
    eventually("the quota counts", lambda: "quota small: pods 0/0; used up: pods" in monarch("doctor", "-n", namespace).stdout)
    done = monarch("doctor", "-n", namespace, "--workload", "jobset")
    assert done.returncode == 1 and "FAIL  JobSet: the cluster does not have it" in done.stdout


def test_doctor_of_a_cluster_that_is_not_there(tmp_path: Path) -> None:
    done = monarch("doctor", "--kubeconfig", str(tmp_path / "missing"))
    assert done.returncode == 1 and f"FAIL  kubeconfig: {tmp_path / 'missing'}: the kubeconfig cannot be read" in done.stdout


def test_script_runs_in_the_cluster_with_its_arguments(cluster: KubeCluster, namespace: str, template: str, tmp_path: Path) -> None:
    path = script(tmp_path, "import os, sys\nprint('in', os.getcwd(), sys.argv[1:])\nsys.exit(7)")
    done = monarch("run", path, "--pod-template", template, "-n", namespace, "--", "a", "--b")
    assert (done.returncode, done.stdout) == (7, "in /run/monarch/work ['a', '--b']\n"), done.stderr
    eventually("nothing is left", lambda: left(cluster, namespace) == [])


@pytest.mark.parametrize("mode", ["run", "native"])
def test_user_runs_a_script_with_granted_rights(cluster: KubeCluster, namespace: str, template: str, tmp_path: Path, mode: str) -> None:
    config = ("--kubeconfig", str(cluster.user_kubeconfig(tmp_path / "eve", "eve")), "-n", namespace)
    path = script(tmp_path, "print('ran')")
    account = ["--service-account", "monarch-client"] if mode == "native" else []
    assert monarch("rbac", "-n", namespace, "--mode", mode, "--user", "eve").returncode == 0
    made = [f"serviceaccount/{name}" for name in ("monarch-client",) if mode == "native"]
    if mode == "native":
        eventually("the rights are in force", lambda: _healthy(config[1], namespace))
        refused = monarch("run", path, "--pod-template", template, *config)
        assert "no right to" in refused.stderr and "--mode run" in refused.stderr and "--service-account" in refused.stderr
        refused = monarch("run", path, "--pod-template", template, "-n", namespace, *account)
        assert refused.returncode == 1 and "there is no service account 'monarch-client'" in refused.stderr
        assert monarch("rbac", "-n", namespace).returncode == 0
    done = eventually("the script has run", lambda: monarch("run", path, "--pod-template", template, *config, *account), _has_run)
    assert done.stdout == "ran\n"
    eventually("nothing of it is left", lambda: [name for name in left(cluster, namespace) if "monarch-client" not in name] == [])
    assert [name for name in left(cluster, namespace) if name.startswith("serviceaccount/")] == made


def _has_run(done: subprocess.CompletedProcess[str]) -> bool:
    # A right takes a moment to be in force.
    return done.returncode == 0 or "no right to" not in done.stderr


def test_error_of_a_script_is_shown(cluster: KubeCluster, namespace: str, template: str, tmp_path: Path) -> None:
    done = monarch("run", script(tmp_path, "raise ValueError('mine')"), "--pod-template", template, "-n", namespace)
    assert done.returncode == 1 and "ValueError: mine" in done.stdout
    assert 'script.py", line 1' in done.stdout


def test_interrupted_run_leaves_nothing(cluster: KubeCluster, namespace: str, template: str, tmp_path: Path) -> None:
    path = script(tmp_path, "import time\nprint('started')\ntime.sleep(600)")
    argv = [*COMMAND, "run", path, "--pod-template", template, "-n", namespace]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    eventually("nothing is left", lambda: left(cluster, namespace) == [])


WAITING = """
import signal
from monarch_job import job

job.apply()
print("applied")
signal.pause()
"""


def test_interrupted_run_leaves_no_workers_without_pods(cluster: KubeCluster, namespace: str, template: str, tmp_path: Path) -> None:
    # The quota is that of the script.
    cluster.kubectl("create", "quota", "small", "--hard=pods=1", "-n", namespace)
    eventually("the quota", lambda: cluster.kubectl("get", "quota", "small", "-n", namespace, "-o", "jsonpath={.status.hard.pods}"))
    argv = [*COMMAND, "run", script(tmp_path, WAITING), "--pod-template", template, "-n", namespace, "--mesh", "workers=2"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "applied\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    eventually("nothing is left", lambda: left(cluster, namespace) == [])


def test_deleted_pod_ends_a_run(cluster: KubeCluster, namespace: str, template: str, tmp_path: Path) -> None:
    path = script(tmp_path, "import signal\nprint('started')\nsignal.pause()")
    argv = [*COMMAND, "run", path, "--pod-template", template, "-n", namespace]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "started\n"
        cluster.kubectl("delete", "pods", "--all", "-n", namespace, "--wait=false")
        _, err = process.communicate(timeout=60)
    # The client sees either the end of its container, or that it is gone.
    assert (process.returncode, "was removed while the script ran" in err) == (143, True) or (
        process.returncode == 4 and "the pod of the script is gone" in err
    ), err
    eventually("nothing is left", lambda: left(cluster, namespace) == [])


def test_run_outlives_restarts_of_kubelet_and_api_server(cluster: KubeCluster, namespace: str, template: str, tmp_path: Path) -> None:
    path = script(tmp_path, "import signal\nprint('started')\nsignal.pause()")
    argv = [*COMMAND, "run", path, "--pod-template", template, "-n", namespace]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "started\n"
        node = json.loads(cluster.kubectl("get", "pods", "-n", namespace, "-o", "json"))["items"][0]["spec"]["nodeName"]
        cluster.kubelet_kill(int(node.removeprefix("node")))
        assert any(line.endswith("; asking again\n") for line in process.stderr)
        cluster.kubelet_up(int(node.removeprefix("node")))
        cluster.api_server_restart()
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stdout.read() == ""
    eventually("nothing is left", lambda: left(cluster, namespace) == [])


def test_missing_image_is_an_error_with_its_reason(
    cluster: KubeCluster, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(k8s_run, "_FAULT_SECONDS", 1.0)
    api = Cluster(KubeConfig.from_path(str(cluster.kubeconfig)).load(), namespace, "monarch k8s run")
    asked = k8s_run.request(script(tmp_path, "pass"), (), "localhost/no-such-image:1", None, ())
    with pytest.raises(
        Exception, match=r"the script does not start\n  pod monarch-run-\S+ on node\d, container client: (ErrImagePull|ImagePull)"
    ):
        k8s_run.run(api, asked)
    api.connection.close()
    eventually("nothing is left", lambda: left(cluster, namespace) == [])


def test_meshes_of_a_run_end_with_it(cluster: KubeCluster, namespace: str, template: str, tmp_path: Path) -> None:
    text = """
import socket
from monarch.actor import Actor, endpoint
from monarch_job import job

class Hello(Actor):
    @endpoint
    def name(self):
        return socket.gethostname()

hosts = job.state(cached_path=None).workers
names = hosts.spawn_procs().spawn("hello", Hello).name.call().get(timeout=100)
print(sorted(name.rpartition("-")[0].partition("-")[0] for _, name in names.items()))
"""
    done = monarch("run", script(tmp_path, text), "--pod-template", template, "-n", namespace, "--mesh", "workers=2", timeout=170)
    assert (done.returncode, done.stdout) == (0, "['workers', 'workers']\n"), done.stdout + done.stderr
    eventually("nothing is left", lambda: left(cluster, namespace) == [])


def test_invalid_options_of_a_run_create_nothing(cluster: KubeCluster, namespace: str, tmp_path: Path) -> None:
    path = script(tmp_path, "pass")
    for words, text in (
        ([], "exactly one of --image, --pod-template"),
        (["--image", "x:1", "--mesh", "Workers=2"], "--mesh 'Workers=2': expected NAME=REPLICAS"),
        (["--image", "x:1", "--mesh", "a=0"], "--mesh 'a=0'"),
        (["--pod-template", path], "is no PodTemplateSpec"),
    ):
        done = monarch("run", path, "-n", namespace, *words)
        assert done.returncode == 2 and text in done.stderr, done
    assert left(cluster, namespace) == []
