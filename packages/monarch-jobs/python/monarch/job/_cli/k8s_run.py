"""`monarch k8s run`: a script in a pod, with the rights to make its workers, from its start to the removal of all of it.

One ConfigMap has the script and owns everything else, so that its deletion removes the rest. The job of `--mesh` is ended by the program
around the script; where that was killed, its pods are found by a label, and the owner of their job is removed from here.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from monarch.job._cli import k8s_install
from monarch.job._machine.commands import time_limit
from monarch.job.errors import JobEndedError, JobError, SubmitError
from monarch.job.kubernetes.access.failures import UnreachableError
from monarch.job.kubernetes.arguments import ImageSpec
from monarch.job.kubernetes.manifests import names, pod, rbac
from monarch.job.kubernetes.pods import diagnosis, pod_view

if TYPE_CHECKING:
    from monarch.job.kubernetes.access.client import Cluster

Object = dict[str, Any]

RUN_LABEL = "monarch-run"
_FOLDER = "/run/monarch/client"
_WORK = "/run/monarch/work"
_CONTAINER = "client"
# A fault that lasts so long does not heal by itself.
_FAULT_SECONDS = 60.0
_CLEAN_UP_SECONDS = 20.0
_PAUSE_S = 0.5
_MOST_SCRIPT = 900_000
_MESH = re.compile(r"(?P<name>[a-z][a-z0-9]{0,62})=(?P<replicas>[1-9][0-9]*)")

_JOB_MODULE = """\
import json
import os
from monarch.job.kubernetes import ImageSpec, KubernetesJob

with open(os.path.join(os.path.dirname(__file__), "job.json")) as f:
    _given = json.load(f)
job = KubernetesJob(_given["namespace"])
for _name, _replicas in _given["meshes"].items():
    if _given["template"] is None:
        job.add_mesh(_name, _replicas, image_spec=ImageSpec(_given["image"]), labels=_given["labels"])
    else:
        job.add_mesh(_name, _replicas, pod_template=_given["template"], labels=_given["labels"])
"""
_PROGRAM = """\
import runpy
import sys

sys.path.insert(0, sys.path.pop(0))
path = sys.argv[1]
sys.argv = sys.argv[1:]
try:
    runpy.run_path(path, run_name="__main__")
finally:
    if "monarch_job" in sys.modules:
        sys.modules["monarch_job"].job.kill()
"""


class RunRequest(NamedTuple):
    """A script and what it runs in: exactly one of `image` and `template` (of its pod and of the workers)."""

    name: str
    text: str
    arguments: tuple[str, ...]
    image: str | None
    template: Object | None
    meshes: dict[str, int]


def request(script: str, arguments: tuple[str, ...], image: str | None, template: str | None, meshes: tuple[str, ...]) -> RunRequest:
    """Reads the files. `click.UsageError` names what is wrong with them."""
    with open(script, encoding="utf-8") as f:
        text = f.read()
    if len(text.encode()) > _MOST_SCRIPT:
        raise click.UsageError(f"{script} has more than {_MOST_SCRIPT // 1000} kB, which is what a ConfigMap takes: put it into the image")
    sizes: dict[str, int] = {}
    for mesh in meshes:
        found = _MESH.fullmatch(mesh)
        if found is None or found["name"] in sizes:
            raise click.UsageError(f"--mesh '{mesh}': expected NAME=REPLICAS, a new name of lower-case letters and digits")
        sizes[found["name"]] = int(found["replicas"])
    read: Object | None = None
    if template is not None:
        import yaml

        with open(template, encoding="utf-8") as f:
            try:
                given: Any = yaml.safe_load(f)
            except yaml.YAMLError as e:
                raise click.UsageError(f"{template} is not YAML: {e}") from e
        if not isinstance(given, dict) or "spec" not in given:
            raise click.UsageError(f"{template} is no PodTemplateSpec: it has no spec")
        read = given  # pyright: ignore[reportUnknownVariableType]
    name = os.path.basename(script)
    return RunRequest(name if re.fullmatch(r"[A-Za-z0-9._-]+", name) else "script.py", text, arguments, image, read, sizes)


def objects(asked: RunRequest, namespace: str, run: str) -> list[Object]:
    """What is applied: the ConfigMap that owns the rest, service account, rights, and the Job."""
    labels = {names.APP_LABEL: "monarch-client", RUN_LABEL: run}
    given = {"namespace": namespace, "meshes": asked.meshes, "image": asked.image, "template": asked.template, "labels": {RUN_LABEL: run}}
    files = {asked.name: asked.text, "client.py": _PROGRAM}
    if asked.meshes:
        files |= {"monarch_job.py": _JOB_MODULE, "job.json": json.dumps(given)}
    metadata = {"name": run, "namespace": namespace, "labels": labels}
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": files}
    job: Object = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {**metadata},
        "spec": {"backoffLimit": 0, "template": _pod(asked, run, {**labels, names.CLIENT_LABEL: "true"})},
    }
    return [owner, *k8s_install.grant(namespace, rbac.rules("native"), service_account=run), job]


def _pod(asked: RunRequest, run: str, labels: dict[str, str]) -> Object:
    if asked.template is not None:
        made: Object = json.loads(json.dumps(asked.template))
    else:
        assert asked.image is not None
        made = pod.image_template(ImageSpec(asked.image).__dict__)
    metadata: Object = made.setdefault("metadata", {})
    metadata["labels"] = {**(metadata.get("labels") or {}), **labels}
    spec: Object = made["spec"]
    container = pod.worker_container(made)
    container["name"] = _CONTAINER
    container["command"] = ["python", "-u", f"{_FOLDER}/client.py", f"{_FOLDER}/{asked.name}", *asked.arguments]
    container["workingDir"] = _WORK
    for key in ("args", "ports", "readinessProbe", "livenessProbe", "startupProbe"):
        container.pop(key, None)
    if asked.template is not None:
        # The devices of the workers are not for the script.
        container.pop("resources", None)
    container["volumeMounts"] = [
        *(container.get("volumeMounts") or []),
        {"name": "monarch-script", "mountPath": _FOLDER, "readOnly": True},
        {"name": "monarch-work", "mountPath": _WORK},
    ]
    spec["containers"] = [container]
    spec["volumes"] = [
        *(spec.get("volumes") or []),
        {"name": "monarch-script", "configMap": {"name": run}},
        {"name": "monarch-work", "emptyDir": {}},
    ]
    spec |= {"serviceAccountName": run, "automountServiceAccountToken": True, "restartPolicy": "Never"}
    return made


def run(cluster: Cluster, asked: RunRequest, *, keep: bool = False) -> int:
    """Runs it; the exit code of the script. `SubmitError`, `JobEndedError` where it does not get to run."""
    run = f"monarch-run-{secrets.token_hex(4)}"
    click.echo(f"monarch: {asked.name} runs as job {run} in namespace {cluster.namespace}", err=True)
    owner: Object | None = None
    try:
        for obj in objects(asked, cluster.namespace, run):
            if owner is not None:
                metadata = owner["metadata"]
                reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": run, "uid": metadata["uid"]}
                obj["metadata"] = {**obj["metadata"], "ownerReferences": [reference]}
            applied = cluster.apply(obj)
            owner = owner or applied
        return _followed(cluster, run)
    finally:
        if keep:
            click.echo(f"monarch: kept; `kubectl -n {cluster.namespace} delete configmap {run}` removes it", err=True)
        else:
            _remove(cluster, run)


def _followed(cluster: Cluster, run: str) -> int:
    shown, faulty_since, reported = 0, 0.0, ""
    while True:
        found = _pod_of(cluster, run)
        view = None if found is None else pod_view.view(found, names.COMPLETION_INDEX)
        if found is not None and view is not None and (view.is_running or view.has_ended):
            with contextlib.suppress(UnreachableError):
                shown += _copy_log(cluster, view.name, shown)
            if (code := _exit_code(_pod_of(cluster, run) or found)) is not None:
                return code
            if view.has_ended:
                fault = diagnosis.fault(view)
                raise JobEndedError("the pod of the script has ended", title=cluster.title, cause=fault.text if fault else view.phase)
        fault = _fault(cluster, run, view)
        if fault is not None and fault.text != reported:
            reported = fault.text
            click.echo(f"monarch: {fault.text}", err=True)
        is_lasting = fault is not None and fault.is_lasting
        faulty_since = (faulty_since or time.monotonic()) if is_lasting else 0.0
        if fault is not None and is_lasting and time.monotonic() - faulty_since > _FAULT_SECONDS:
            events = "\n".join(diagnosis.event_lines(cluster.events(fault.pod))) if fault.pod else ""
            raise SubmitError("the script does not start", title=cluster.title, cause="\n".join(filter(None, (fault.text, events))))
        time.sleep(_PAUSE_S)


def _fault(cluster: Cluster, run: str, view: pod_view.PodView | None) -> diagnosis.Fault | None:
    return diagnosis.refused(f"job {run}", cluster.events(run, "Job")) if view is None else diagnosis.fault(view)


def _pod_of(cluster: Cluster, run: str) -> Object | None:
    found, _ = cluster.list("v1/Pod", f"{RUN_LABEL}={run},{names.APP_LABEL}=monarch-client")
    return max(found, key=lambda one: str(one["metadata"].get("creationTimestamp")), default=None)


def _copy_log(cluster: Cluster, name: str, shown: int) -> int:
    """Shows the log from its byte `shown` on, until it ends; the bytes that are new."""
    new, skipped = 0, shown
    for part in _parts(cluster, name):
        rest = part[skipped:]
        skipped = max(0, skipped - len(part))
        if rest:
            sys.stdout.buffer.write(rest)
            sys.stdout.buffer.flush()
            new += len(rest)
    return new


def _parts(cluster: Cluster, name: str) -> Iterator[bytes]:
    try:
        yield from cluster.follow_log(name, _CONTAINER)
    except SubmitError as e:
        if getattr(e, "status", 0) not in (400, 404):
            raise
        # The container has not started, or the pod has gone.


def _exit_code(found: Object) -> int | None:
    statuses: list[Object] = found.get("status", {}).get("containerStatuses") or []
    for status in statuses:
        state: Object = status.get("state") or {}
        if status.get("name") == _CONTAINER and "terminated" in state:
            return int(state["terminated"].get("exitCode", 1))
    return None


def _remove(cluster: Cluster, run: str) -> None:
    """Everything of this run, the jobs of its pods included; reports what it could not."""
    with time_limit(_CLEAN_UP_SECONDS):
        try:
            workers, _ = cluster.list("v1/Pod", f"{RUN_LABEL}={run},{names.JOB_LABEL}")
            for apply_id in {one["metadata"]["labels"][names.JOB_LABEL] for one in workers}:
                cluster.delete("v1/ConfigMap", names.anchor_name(apply_id))
            cluster.delete("v1/ConfigMap", run)
        except JobError as e:
            click.echo(f"monarch: {run} is not removed: {e}\nmonarch: `kubectl -n {cluster.namespace} delete configmap {run}`", err=True)
