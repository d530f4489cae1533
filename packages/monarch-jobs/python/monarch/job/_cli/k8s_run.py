"""`monarch k8s run`: a script in a pod, with the rights to make its workers, from its start to the removal of all of it.

One ConfigMap has the script and owns everything else, so that its deletion removes the rest. The job of `--mesh` is ended by the program
around the script. Where that was killed, the pods and workloads of the job are found by a label, and the owner of the job is removed from
here.

A script may run for days. API servers and kubelets restart meanwhile, so requests that fail for a while do not end the run.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import click

from monarch.job._cli import k8s_install
from monarch.job._machine.commands import time_limit
from monarch.job.errors import JobEndedError, JobError, SubmitError
from monarch.job.kubernetes.access.failures import ApiError, UnreachableError
from monarch.job.kubernetes.arguments import ImageSpec
from monarch.job.kubernetes.manifests import names, pod, rbac
from monarch.job.kubernetes.pods import diagnosis, pod_view
from monarch.job.kubernetes.pods.fields import part, rows, text
from monarch.job.kubernetes.submission import FORBIDDEN, GRACE_S

if TYPE_CHECKING:
    from monarch.job.kubernetes.access.client import Cluster

Object = dict[str, Any]
_Failure: TypeAlias = ApiError | UnreachableError

RUN_LABEL = "monarch-run"
_FOLDER = "/run/monarch/client"
_WORK = "/run/monarch/work"
_CONTAINER = "client"
# Seconds after which a fault counts as permanent.
_FAULT_SECONDS = 60.0
# Seconds for which an API server that is back may deny permitted requests, until it has loaded its rules.
_DENIAL_SECONDS = 20.0
# Seconds for the last output of a script that has ended, from a kubelet that restarts.
_OUTPUT_SECONDS = 20.0
_CLEAN_UP_SECONDS = 20.0
# The part of these seconds for the end of the script: its grace period, the kubelet's report, and the requests.
_END_SECONDS = 12.0
_REPORT_SECONDS = GRACE_S + 3.0
_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 5.0
# The statuses of an overloaded server or kubelet and, from 500 on, of one that starts.
_OVERLOADED, _SERVER_ERRORS = 429, 500
_NOT_STARTED, _NOT_FOUND = 400, 404
_JOB, _STATEFUL_SET = "batch/v1/Job", "apps/v1/StatefulSet"
# The kinds that can have the labels of a run and of its job. Pods alone do not suffice: a job that waits in a queue has none.
_LABELLED = (_JOB, "v1/Pod", _STATEFUL_SET)
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
import signal
import sys


def _end(number, frame):
    raise SystemExit(128 + number)


# A container's process 1 gets no signal that it does not handle: its end would take the whole grace period, and no `finally` would run.
signal.signal(signal.SIGTERM, _end)
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
    """A script and what it runs in: exactly one of `image` and `template` (of its pod and of the workers).

    `service_account` is one that exists; without it the run makes one.
    """

    name: str
    text: str
    arguments: tuple[str, ...]
    image: str | None
    template: Object | None
    meshes: dict[str, int]
    service_account: str | None = None


def request(
    script: str,
    arguments: tuple[str, ...],
    image: str | None,
    template: str | None,
    meshes: tuple[str, ...],
    service_account: str | None = None,
) -> RunRequest:
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
    name = name if re.fullmatch(r"[A-Za-z0-9._-]+", name) else "script.py"
    return RunRequest(name, text, arguments, image, read, sizes, service_account)


def objects(asked: RunRequest, namespace: str, run: str) -> list[Object]:
    """What is applied: the ConfigMap that owns the rest, service account and rights where none is given, and the Job."""
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
    made = [] if asked.service_account is not None else k8s_install.grant(namespace, rbac.rules("native"), service_account=run)
    return [owner, *made, job]


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
    spec |= {"serviceAccountName": asked.service_account or run, "automountServiceAccountToken": True, "restartPolicy": "Never"}
    return made


def run(cluster: Cluster, asked: RunRequest, *, keep: bool = False) -> int:
    """Runs it; the exit code of the script. `SubmitError`, `JobEndedError` where it does not get to run."""
    run = f"monarch-run-{secrets.token_hex(4)}"
    if asked.service_account is not None:
        _check_account(cluster, asked.service_account)
    click.echo(f"monarch: {asked.name} runs as job {run} in namespace {cluster.namespace}", err=True)
    owner: Object | None = None
    try:
        for obj in objects(asked, cluster.namespace, run):
            if owner is not None:
                metadata = owner["metadata"]
                reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": run, "uid": metadata["uid"]}
                obj["metadata"] = {**obj["metadata"], "ownerReferences": [reference]}
            try:
                applied = cluster.apply(obj)
            except ApiError as error:
                raise _with_way_out(error, obj) from None
            owner = owner or applied
        return _followed(cluster, run)
    finally:
        if keep:
            click.echo(f"monarch: kept; `kubectl -n {cluster.namespace} delete configmap {run}` removes it", err=True)
        else:
            _remove(cluster, run)


def _check_account(cluster: Cluster, name: str) -> None:
    """The Job would wait for it: `SubmitError` where it is known to be missing."""
    try:
        found = cluster.get("v1/ServiceAccount", name)
    except ApiError as error:
        if error.status != FORBIDDEN:
            raise
        return
    if found is None:
        raise SubmitError(
            f"there is no service account '{name}' in namespace '{cluster.namespace}'",
            title=cluster.title,
            hint=f"`monarch k8s rbac --namespace {cluster.namespace} --service-account {name}` makes it, with the rights of a client",
        )


def _with_way_out(error: ApiError, obj: Object) -> ApiError:
    """The same where a user lacks the right to give rights, and what helps."""
    if error.status != FORBIDDEN or obj["kind"] not in ("ServiceAccount", "Role", "RoleBinding"):
        return error
    place = obj["metadata"]["namespace"]
    what, _, rest = str(error).partition("\n")
    return ApiError(
        what,
        cause=rest.partition("hint:")[0].strip(),
        hint=f"`monarch k8s rbac --namespace {place} --mode run --user NAME`, by an administrator, grants it; or name a service account "
        "that exists: `--service-account`",
        status=error.status,
        reason=error.reason,
    )


def _followed(cluster: Cluster, run: str) -> int:
    follower, outage = _Follower(cluster, run), _Outage(cluster.title)
    while True:
        pause = _PAUSE_S
        try:
            code = follower.look()
            outage.end()
        except (ApiError, UnreachableError) as e:
            code, pause = None, outage.pause(e, has_run=follower.has_run)
        if code is not None:
            return code
        time.sleep(pause)


class _Outage:
    """Requests that fail for a while: a server or kubelet restarts, is overloaded, or cannot be reached."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._has_answered = False
        self._pause = _PAUSE_S
        self._since: float | None = None
        self._denied_since: float | None = None

    def end(self) -> None:
        """Nothing fails any more."""
        self._has_answered = True
        self._pause = _PAUSE_S
        self._since = self._denied_since = None

    def pause(self, error: _Failure, *, has_run: bool) -> float:
        """Reports the first failure, and gives the seconds until the next try. Raises what does not pass.

        The end of a run removes its script. So a script that has run is asked for without a limit.
        """
        now = time.monotonic()
        is_denied = isinstance(error, ApiError) and error.status == FORBIDDEN
        self._denied_since = (now if self._denied_since is None else self._denied_since) if is_denied else None
        if self._denied_since is not None:
            is_over = not self._has_answered or now - self._denied_since >= _DENIAL_SECONDS
        elif isinstance(error, ApiError) and error.status != _OVERLOADED and error.status < _SERVER_ERRORS:
            is_over = True
        else:
            is_over = not has_run and self._since is not None and now - self._since >= _FAULT_SECONDS
        if is_over:
            raise error
        if self._since is None:
            self._since = now
            click.echo(f"monarch: {_line(error, self._title)}; asking again", err=True)
        pause, self._pause = self._pause, min(self._pause * 2, _LONGEST_PAUSE_S)
        return pause


def _line(error: _Failure, title: str) -> str:
    """What has failed, and its cause, which is the second line of the text."""
    return ": ".join(line.strip() for line in str(error).removeprefix(f"{title}: ").splitlines()[:2])


class _Log:
    """The output of the script: each byte is shown once, also where the log is cut and requested again from its start.

    `is_open`: the last request has got a part of it.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._pod, self._shown = "", 0
        self.is_open = False

    def copy(self, view: pod_view.PodView) -> _Failure | None:
        """Shows what is new, until the log ends; the failure that cut it."""
        if view.uid != self._pod:
            self._pod, self._shown = view.uid, 0
        skipped, self.is_open = self._shown, False
        try:
            for chunk in self._cluster.follow_log(view.name, _CONTAINER):
                self.is_open = True
                rest = chunk[skipped:]
                skipped = max(0, skipped - len(chunk))
                self._shown += len(rest)
                if rest:
                    sys.stdout.buffer.write(rest)
                    sys.stdout.buffer.flush()
        except UnreachableError as e:
            return e
        except ApiError as e:
            # The container has not started, or the pod has gone.
            return None if e.status in (_NOT_STARTED, _NOT_FOUND) else e
        return None


class _Follower:
    """Looks at the pod of a script, and shows its output and what is wrong with it."""

    def __init__(self, cluster: Cluster, run: str) -> None:
        self._cluster, self._run = cluster, run
        self._log = _Log(cluster)
        self.has_run = False
        self._reported = ""
        self._faulty_since: float | None = None
        self._ended_since: float | None = None

    def look(self) -> int | None:
        """The exit code of the script; None while it has not ended. `JobEndedError` and `SubmitError` where there will be none."""
        found = _pod_of(self._cluster, self._run)
        if found is None:
            return self._without_pod()
        view = _view(found)
        if not (view.is_running or view.has_ended or _exit_code(found) is not None):
            self._check_start(diagnosis.fault(view))
            return None
        self.has_run = True
        cut = self._log.copy(view)
        found = _pod_of(self._cluster, self._run) or found
        view, code = _view(found), _exit_code(found)
        if code is None and not view.has_ended:
            fault = diagnosis.fault(view)
            if fault is not None:
                self._report(fault.text)
            # Proxies cut a log without output after a while, which is no failure.
            if cut is not None and not self._log.is_open:
                raise cut
            return None
        if cut is not None and not self._is_output_over(cut):
            return None
        if code is None:
            fault = diagnosis.fault(view)
            raise JobEndedError("the pod of the script has ended", title=self._cluster.title, cause=fault.text if fault else view.phase)
        if view.disruption or view.deleted_at:
            self._report(f"pod {view.name} was removed while the script ran{f': {view.disruption}' if view.disruption else ''}")
        return code

    def _without_pod(self) -> int | None:
        end = _end_of_job(self._cluster, self._run)
        if end is None:
            self._check_start(diagnosis.refused(f"job {self._run}", self._cluster.events(self._run, "Job")))
            return None
        if _pod_of(self._cluster, self._run) is not None:
            return None  # the end came between the two requests
        if end.state == "complete":
            return 0
        raise JobEndedError("the pod of the script is gone", title=self._cluster.title, cause=end.text, state=end.state, reason=end.reason)

    def _check_start(self, fault: diagnosis.Fault | None) -> None:
        """`SubmitError` where the script does not start, and waiting has not helped."""
        if fault is not None:
            self._report(fault.text)
        if fault is None or not fault.is_lasting:
            self._faulty_since = None
            return
        now = time.monotonic()
        if self._faulty_since is None:
            self._faulty_since = now
        if now - self._faulty_since > _FAULT_SECONDS:
            events = "\n".join(diagnosis.event_lines(self._cluster.events(fault.pod))) if fault.pod else ""
            cause = "\n".join(filter(None, (fault.text, events)))
            raise SubmitError("the script does not start", title=self._cluster.title, cause=cause)

    def _is_output_over(self, cut: _Failure) -> bool:
        """Has a script that has ended been asked for its last output for too long?"""
        now = time.monotonic()
        if self._ended_since is None:
            self._ended_since = now
        if now - self._ended_since < _OUTPUT_SECONDS:
            return False
        self._report(f"the end of the script's output cannot be read: {_line(cut, self._cluster.title)}")
        return True

    def _report(self, what: str) -> None:
        if what != self._reported:
            self._reported = what
            click.echo(f"monarch: {what}", err=True)


class _End(NamedTuple):
    """How a Job has ended: `state` is failed, complete or gone, `reason` is Kubernetes' word."""

    state: str
    reason: str
    text: str


def _end_of_job(cluster: Cluster, run: str) -> _End | None:
    """None while it may make a pod."""
    # `list`, because clients have no right to `get` a Job.
    found, _ = cluster.list(_JOB, _of_script(run))
    if not found:
        return _End("gone", "", f"job {run} is gone from namespace '{cluster.namespace}'")
    if text(found[0], "metadata", "deletionTimestamp"):
        return _End("gone", "", f"job {run} is being deleted")
    for condition in rows(found[0], "status", "conditions"):
        kind, reason = text(condition, "type"), text(condition, "reason")
        if condition.get("status") == "True" and kind in ("Failed", "Complete"):
            words = ": ".join(filter(None, (reason, text(condition, "message"))))
            state = "failed" if kind == "Failed" else "complete"
            return _End(state, reason, f"job {run} {'has failed' if kind == 'Failed' else 'is complete'}{f': {words}' if words else ''}")
    return None


def _of_script(run: str) -> str:
    """The label selector of the script's own pod and Job."""
    return f"{RUN_LABEL}={run},{names.APP_LABEL}=monarch-client"


def _pod_of(cluster: Cluster, run: str) -> Object | None:
    found, _ = cluster.list("v1/Pod", _of_script(run))
    return max(found, key=lambda one: str(one["metadata"].get("creationTimestamp")), default=None)


def _view(found: Object) -> pod_view.PodView:
    return pod_view.view(found, names.COMPLETION_INDEX)


def _exit_code(found: Object) -> int | None:
    for status in rows(found, "status", "containerStatuses"):
        state = part(status, "state")
        if status.get("name") == _CONTAINER and "terminated" in state:
            return int(part(state, "terminated").get("exitCode", 1))
    return None


def _remove(cluster: Cluster, run: str) -> None:
    """Everything of this run, the jobs of its script included; reports what it could not."""
    try:
        with time_limit(_CLEAN_UP_SECONDS), contextlib.ExitStack() as later:
            # The script keeps its rights until it has ended. A failure of one step, or a second Ctrl-C, does not skip the next step.
            later.callback(cluster.delete, "v1/ConfigMap", run)
            later.callback(_remove_jobs, cluster, run)
            _end_script(cluster, run)
    except JobError as e:
        click.echo(f"monarch: {run} may not be removed: {e}\nmonarch: `kubectl -n {cluster.namespace} delete configmap {run}`", err=True)


def _end_script(cluster: Cluster, run: str) -> None:
    """Ends the pod of the script, and waits for it: as long as the script runs, it may make more."""
    with time_limit(_END_SECONDS):
        # The Job comes first, so that its controller makes no other pod.
        cluster.delete(_JOB, run)
        end = time.monotonic() + _REPORT_SECONDS
        asked: set[str] = set()
        while True:
            found, _ = cluster.list("v1/Pod", _of_script(run))
            running = [view for one in found if not (view := _view(one)).has_ended and _exit_code(one) is None]
            if not running:
                return
            is_last = time.monotonic() >= end
            for view in running:
                if is_last:
                    # Its node may be gone. The credentials of the script are void with the pod's record.
                    cluster.delete("v1/Pod", view.name, grace=0, uid=view.uid)
                elif view.uid not in asked:
                    cluster.delete("v1/Pod", view.name, grace=GRACE_S, uid=view.uid)
                    asked.add(view.uid)
            if is_last:
                return
            time.sleep(_PAUSE_S)


def _remove_jobs(cluster: Cluster, run: str) -> None:
    """The jobs of the script, by the anchors that own what they are made of."""
    removed: set[str] = set()
    for kind in _LABELLED:
        try:
            found, _ = cluster.list(kind, f"{RUN_LABEL}={run},{names.JOB_LABEL}")
        except ApiError as e:
            # A user without a right to see StatefulSets cannot grant the script one to make them.
            if kind == _STATEFUL_SET and e.status == FORBIDDEN:
                continue
            raise
        for apply_id in sorted({text(one, "metadata", "labels", names.JOB_LABEL) for one in found} - removed):
            cluster.delete("v1/ConfigMap", names.anchor_name(apply_id))
            removed.add(apply_id)
