"""The images of the Dockerfiles, built without an engine (tools/k8s/image_build.py), in pods: nothing there is this machine's."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from command import ARGV
from kubernetes_jobs import PODS_S, Jobs

from monarch.actor import Actor, endpoint
from monarch.job.kubernetes import ImageSpec, KubernetesJob
from tools.k8s import image_build
from tools.k8s.administration import Administration
from tools.k8s.cluster import KubeCluster
from tools.project import JOBS

VERSION = version("monarch-jobs")
SLIM, OPERATOR = f"localhost/monarch:{VERSION}", f"localhost/monarch-operator:{VERSION}"
WHEELS = ("monarch-core", "monarch-fs", "monarch-jobs", "monarch-rdma", "monarch-spmd", "monarch-suite", "monarch-telemetry")
DOCKERFILES = JOBS / "images"
# Debian's root is made once, in minutes; then it is kept.
pytestmark = pytest.mark.timeout(900)

LOOK = """
import json, os, pathlib, shutil, stat, subprocess, sys
def said(*argv): return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()
print(json.dumps({
    "ids": [os.getuid(), os.getgid()], "folder": os.getcwd(), "python": list(sys.version_info[:2]),
    "monarch": json.loads(said("monarch", "version", "--json")),
    "fuse": said("fusermount3", "--version"), "fuse_root": bool(os.stat(shutil.which("fusermount3")).st_mode & stat.S_ISUID),
    "fuse_conf": "user_allow_other" in pathlib.Path("/etc/fuse.conf").read_text().splitlines(),
    "compilers": [name for name in ("cc", "gcc", "g++", "c++", "clang", "make", "rustc", "cargo", "go") if shutil.which(name)],
    "wheels": pathlib.Path("/wheels").exists(), "unbuffered": os.environ["PYTHONUNBUFFERED"],
}))
"""


@pytest.fixture(scope="module")
def slim(started_cluster: KubeCluster) -> str:
    return _known_to_nodes(started_cluster, "slim.Dockerfile", SLIM)


@pytest.fixture(scope="module")
def operator(started_cluster: KubeCluster) -> str:
    return _known_to_nodes(started_cluster, "operator.Dockerfile", OPERATOR)


def _known_to_nodes(cluster: KubeCluster, dockerfile: str, name: str) -> str:
    if lacking := image_build.missing():
        pytest.skip(lacking)
    # The method of KubeCluster would import the image on every node that comes back in a later test.
    Administration.import_image(cluster, image_build.built(DOCKERFILES / dockerfile, name))
    return name


@pytest.fixture
def jobs(cluster: KubeCluster, namespace: str) -> Iterator[Jobs]:
    made = Jobs(cluster, namespace, {})
    yield made
    for job in made.made:
        job.kill()


def _look(cluster: KubeCluster, namespace: str, image: str) -> dict[str, Any]:
    """What a pod of this image reports of itself."""
    cluster.kubectl("run", "look", f"--image={image}", "--restart=Never", "-n", namespace, "--command", "--", "python", "-c", LOOK)
    cluster.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/look", "-n", namespace, "--timeout=60s", timeout=90)
    return json.loads(cluster.kubectl("logs", "look", "-n", namespace))


def test_slim_image_has_its_packages_and_no_compilers(cluster: KubeCluster, namespace: str, slim: str) -> None:
    found = _look(cluster, namespace, slim)
    assert found.pop("python") == [3, 11]  # Debian's; the minor version of the client in the tests below
    assert {name: found["monarch"].get(name) for name in WHEELS} == dict.fromkeys(WHEELS, VERSION)
    del found["monarch"]
    assert str(found.pop("fuse")).startswith("fusermount3 version: 3.")
    assert found == {
        "ids": [1000, 1000],
        "folder": "/tmp",
        "fuse_root": True,
        "fuse_conf": True,
        "compilers": [],
        "wheels": False,
        "unbuffered": "1",
    }


def test_workers_of_slim_image_answer(jobs: Jobs, slim: str) -> None:
    _same_python()
    job = _add(jobs, KubernetesJob(jobs.namespace), slim)
    assert _answers(jobs, job) == [(6, 1000), (6, 1000)]
    assert {pod["spec"]["containers"][0]["imagePullPolicy"] for pod in jobs.pods()} == {"IfNotPresent"}
    job.kill()
    assert jobs.objects() == []


def test_one_command_runs_a_script_and_its_mesh(cluster: KubeCluster, namespace: str, slim: str, tmp_path: Path) -> None:
    script = tmp_path / "hello.py"
    script.write_text("""
import os
from monarch.actor import Actor, endpoint
from monarch_job import job

class Hello(Actor):
    @endpoint
    def user(self):
        return os.getuid()

print(job.state(cached_path=None).workers.spawn_procs().spawn("hello", Hello).user.call().get(timeout=100).values())
""")
    argv = [*ARGV, "k8s", "run", str(script), "--image", slim, "-n", namespace, "--mesh", "workers=2"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=170)
    assert (done.returncode, done.stdout) == (0, "[1000, 1000]\n"), done.stdout + done.stderr


def test_command_of_slim_image_is_a_worker(cluster: KubeCluster, namespace: str, slim: str) -> None:
    # The container has no secret here, and prints the place where it expects one.
    cluster.kubectl("run", "own", f"--image={slim}", "--restart=Never", "-n", namespace)
    cluster.kubectl("wait", "--for=jsonpath={.status.phase}=Failed", "pod/own", "-n", namespace, "--timeout=60s", timeout=90)
    assert "tcp://*:26600 needs one of: secret= (or MONARCH_JOB_SECRET_FILE)" in cluster.kubectl("logs", "own", "-n", namespace)


def test_operator_image_makes_meshes_of_the_slim_image(jobs: Jobs, slim: str, operator: str) -> None:
    _same_python()
    cluster, namespace = jobs.cluster, jobs.namespace
    install = [*ARGV, "k8s", "install", "--operator", "-n", namespace, "--image", operator]
    try:
        done = subprocess.run(install, capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stderr) == (0, "")
        cluster.kubectl("wait", "--for=condition=Available", "deployment/monarch-operator", "-n", namespace, "--timeout=90s", timeout=120)
        job = _add(jobs, KubernetesJob(namespace, provisioner="monarchmesh"), slim)
        assert _answers(jobs, job) == [(6, 1000), (6, 1000)]
        job.kill()
    finally:
        # These objects are not in the namespace; the definition stays for other tests.
        cluster.kubectl("delete", "clusterrole,clusterrolebinding", "monarch-operator", "--ignore-not-found")


def test_operator_image_starts_operator_by_itself(cluster: KubeCluster, namespace: str, operator: str) -> None:
    cluster.kubectl("run", "own", f"--image={operator}", "--restart=Never", "-n", namespace, "--", "--help")
    cluster.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/own", "-n", namespace, "--timeout=60s", timeout=90)
    assert "--leader-elect" in cluster.kubectl("logs", "own", "-n", namespace)


def _same_python() -> None:
    if sys.version_info[:2] != (3, 11):
        pytest.skip("workers need the minor version of the client's Python, and Debian's is 3.11")


def _add(jobs: Jobs, job: KubernetesJob, image: str) -> KubernetesJob:
    job.add_mesh("workers", 2, image_spec=ImageSpec(image))
    jobs.made.append(job)
    return job


def _answers(jobs: Jobs, job: KubernetesJob) -> list[tuple[int, int]]:
    """The answer of an actor on every host, and the user that it runs as."""

    # The image has no module of these tests, so the class is sent with the call.
    class Digits(Actor):
        @endpoint
        def total(self, text: str) -> tuple[int, int]:
            import os

            return sum(int(digit) for digit in text), os.getuid()

    procs = jobs.joined(job).workers.spawn_procs({"procs": 1})
    found = list(procs.spawn("digits", Digits).total.call("123").get(PODS_S).values())
    procs.stop().get(PODS_S)
    return found
