"""A KubernetesJob of three pods beside kubectl with the same objects, on a real cluster whose nodes have the image.

`hatch run python bench/kubernetes_job.py [FOLDER]`: starts a cluster, or uses the one that `python -m tools.k8s up FOLDER` has started.
Each row is the median of the rounds, in seconds. `over Running` is the time from the last pod that becomes Running to the first answered
call: within it an interpreter starts in each pod, and its worker listens. The client's own share is that without the time until the API
server reports all pods as Ready.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "packages" / "monarch-jobs" / "tests" / "k8s"
sys.path[:0] = [str(TESTS), str(ROOT / "packages" / "monarch-core" / "tests" / "process"), str(ROOT)]

from requirement import kubernetes, require  # noqa: E402

from tools.k8s.cluster import KubeCluster  # noqa: E402

ROUNDS, PODS, NAMESPACE = 3, 3, "bench-kubernetes-job"
_CLIENT = """
import time
start = time.monotonic()
from monarch.job import job_load
state = job_load("job.json").state("job.json")
state.workers.initialized.get(60)
print(time.monotonic() - start)
"""


class Phases(threading.Thread):
    """Records the times at which all pods of a job are Running and Ready for the first time."""

    def __init__(self, cluster: Any, selector: str) -> None:
        super().__init__(daemon=True)
        self._cluster, self._selector = cluster, selector
        self.running: float | None = None
        self.ready: float | None = None

    def run(self) -> None:
        while self.ready is None:
            pods, _ = self._cluster.list("v1/Pod", self._selector)
            now = time.monotonic()
            phases = [pod["status"].get("phase") for pod in pods]
            conditions = [{one["type"]: one["status"] for one in pod["status"].get("conditions") or ()} for pod in pods]
            if len(pods) >= PODS and phases.count("Running") >= PODS:
                self.running = self.running or now
                if all(of_pod.get("Ready") == "True" for of_pod in conditions):
                    self.ready = now
            time.sleep(0.05)


def measure(folder: Path, kubectl: list[str], template: dict[str, Any]) -> dict[str, list[float]]:
    """Seconds by name, one value per round."""
    from kubernetes_jobs import answers

    from monarch.job.kubernetes import KubernetesJob
    from monarch.job.kubernetes.manifests import job_objects
    from monarch.job.kubernetes.manifests.yaml_text import documents

    found: defaultdict[str, list[float]] = defaultdict(list)

    def job() -> KubernetesJob:
        made = KubernetesJob(NAMESPACE, network_policy=False)
        made.add_mesh("workers", PODS, pod_template=template)
        return made

    def run(*argv: str, stdin: str = "") -> float:
        start = time.monotonic()
        subprocess.run([*kubectl, "-n", NAMESPACE, *argv], input=stdin, text=True, check=True, capture_output=True)
        return time.monotonic() - start

    for number in range(ROUNDS):
        ours = job()
        start = time.monotonic()
        ours.apply()
        phases = Phases(ours._cluster(), f"monarch.pytorch.org/job={ours.apply_id}")
        phases.start()
        ours.dump("job.json")
        state = ours.state("job.json")
        state.workers.initialized.get(120)
        joined = time.monotonic()
        assert answers(state) == [6] * PODS
        answered = time.monotonic()
        phases.join(120)
        assert phases.running is not None and phases.ready is not None
        found["apply to first answered call"].append(answered - start)
        found["first answered call over Running"].append(answered - phases.running)
        found["all joined over Ready: the client's own share"].append(max(joined - phases.ready, 0.0))
        result = subprocess.run([sys.executable, "-c", _CLIENT], stdout=subprocess.PIPE, text=True, check=True)
        found["re-attach from a fresh process"].append(float(result.stdout))
        lost = ours.status().hosts[0].name
        start = time.monotonic()
        run("delete", "pod", lost, "--wait=false", "--grace-period=1")
        while ours.status().hosts[0].phase != "lost":
            time.sleep(0.02)
        ours.heal(timeout=120)
        again = ours.state("job.json")
        again.workers.initialized.get(120)
        assert answers(again) == [6] * PODS
        found["pod deleted to all answering, by heal()"].append(time.monotonic() - start)
        start = time.monotonic()
        ours.kill()
        found["kill"].append(time.monotonic() - start)

        # The same objects, without the anchor.
        apply_id = f"{number:08d}-0000-0000-0000-000000000000"
        objects = job_objects(job()._args.model_copy(update={"insecure": True}), apply_id)
        text = documents(objects)
        name = next(one["metadata"]["name"] for one in objects if one["kind"] == "Job")
        start = time.monotonic()
        run("apply", "-f", "-", stdin=text)
        run("wait", "--for=jsonpath={.status.ready}=3", f"job/{name}", "--timeout=120s")
        found["kubectl apply and wait until Ready"].append(time.monotonic() - start)
        first = subprocess.run(
            [*kubectl, "-n", NAMESPACE, "get", "pods", "-l", f"job-name={name}", "-o", "jsonpath={.items[0].metadata.name}"],
            text=True,
            check=True,
            capture_output=True,
        ).stdout
        start = time.monotonic()
        run("delete", "pod", first, "--grace-period=1")
        run("wait", "--for=jsonpath={.status.ready}=3", f"job/{name}", "--timeout=120s")
        found["kubectl delete pod and wait until Ready"].append(time.monotonic() - start)
        start = time.monotonic()
        run("delete", "-f", "-", "--cascade=foreground", stdin=text)
        found["kubectl delete"].append(time.monotonic() - start)
    return found


def main() -> None:
    from kubernetes_jobs import host_template

    standing = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    require(*([] if standing is not None else [kubernetes()]))
    with tempfile.TemporaryDirectory(prefix="mb-") as made:
        os.chdir(made)
        os.environ["MONARCH_HOME"] = os.path.join(made, "home")
        cluster = None if standing is not None else KubeCluster(Path(made) / "k8s")
        try:
            if cluster is not None:
                cluster.up()
            kubeconfig = (standing / "kubeconfig") if standing is not None else Path(made) / "k8s" / "kubeconfig"
            os.environ["KUBECONFIG"] = str(kubeconfig)
            from tools.k8s.build import KUBE

            kubectl = [str(KUBE.folder / "bin" / "kubectl"), "--kubeconfig", str(kubeconfig)]
            subprocess.run([*kubectl, "create", "namespace", NAMESPACE], check=True, capture_output=True)
            try:
                for name, values in measure(Path(made), kubectl, host_template()).items():
                    print(f"{statistics.median(values):8.2f}  {name}  ({', '.join(f'{value:.2f}' for value in values)})", flush=True)
            finally:
                subprocess.run([*kubectl, "delete", "namespace", NAMESPACE, "--wait=false"], check=True, capture_output=True)
        finally:
            if cluster is not None:
                cluster.down()


if __name__ == "__main__":
    main()
