"""`monarch k8s run` across failures that pass, the loss of its pod, cuts of the log, and Ctrl-C; on a cluster in memory."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from memory_cluster import JOB, MemoryCluster

from monarch.job import JobEndedError
from monarch.job._cli import k8s_run
from monarch.job.kubernetes import ImageSpec, KubernetesJob
from monarch.job.kubernetes.access.client import Object
from monarch.job.kubernetes.access.failures import ApiError, UnreachableError
from monarch.job.kubernetes.launcher import KubernetesLauncher
from monarch.job.kubernetes.manifests import names

ASKED = k8s_run.RunRequest("script.py", "pass", (), "registry.example.com/monarch:1", None, {"workers": 1})
RUNNING: Object = {"running": {}}
AWAY = UnreachableError("the API server https://memory.example cannot be reached", server="https://memory.example", cause="refused")
RESTARTS = ApiError("the cluster refused to get pods/log", cause="dial tcp: connection refused", status=500)
DENIED = ApiError("no right to list pods", status=403)
NAME = "script-pod"

# A part of a log, its failure, or an action at that point.
Part = bytes | BaseException | Callable[[], object]


class Hang(BaseException):
    """Nothing happens any more, and the command waits."""


class Namespace(MemoryCluster):
    """A namespace, and its clock. While the command waits, one of `steps` happens; each request of a log gets one of `output`."""

    def __init__(self) -> None:
        super().__init__()
        self.title = "monarch k8s run script.py"
        self.now = 1000.0
        self.steps: list[Callable[[], object]] = []
        self.output: list[list[Part]] = []
        self.graces: list[int | None] = []
        # Whether a pod ends as soon as its end is requested.
        self.ends_pods = True

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if not self.steps:
            raise Hang
        self.steps.pop(0)()

    @property
    def run(self) -> str:
        return next(name for kind, name in self.objects if kind == "v1/ServiceAccount")

    @property
    def job(self) -> Object:
        return self.objects["batch/v1/Job", self.run]

    def list(self, kind: str, selector: str = "", *, fields: str = "") -> tuple[list[Object], str]:
        parts = selector.split(",")
        wanted = {part for part in parts if part and "=" not in part}
        found, version = super().list(kind, ",".join(part for part in parts if "=" in part), fields=fields)
        return [one for one in found if wanted <= one["metadata"].get("labels", {}).keys()], version

    def delete(self, kind: str, name: str, *, propagation: str = "Background", grace: int | None = None, uid: str | None = None) -> bool:
        if kind == "v1/Pod":
            self.graces.append(grace)
            if grace and not self.ends_pods:
                self._request("delete", kind, name)
                return True
        owner = self.objects.get((kind, name))
        is_deleted = super().delete(kind, name, propagation=propagation, grace=grace, uid=uid)
        if is_deleted and owner is not None:
            self._collect(owner["metadata"]["uid"])
        return is_deleted

    def _collect(self, owner: str) -> None:
        for kind, name in list(self.objects):
            obj = self.objects.get((kind, name))
            if obj is None or (kind == "v1/Pod" and not self.ends_pods):
                continue
            if any(one["uid"] == owner for one in obj["metadata"].get("ownerReferences", ())):
                del self.objects[kind, name]
                self._collect(obj["metadata"]["uid"])

    def follow_log(self, name: str, container: str | None = None, *, since: str | None = None) -> Iterator[bytes]:
        self._request("follow", "v1/Pod", name)
        for part in self.output.pop(0) if self.output else []:
            if isinstance(part, bytes):
                yield part
            elif isinstance(part, BaseException):
                raise part
            else:
                part()

    def start(self, state: Object = RUNNING, phase: str = "Running", **changes: Any) -> None:
        """The pod of the script is in this state."""
        status = {"phase": phase, "containerStatuses": [{"name": "client", "ready": True, "restartCount": 0, "state": state}], **changes}
        if ("v1/Pod", NAME) in self.objects:
            self.objects["v1/Pod", NAME]["status"] = status
            return
        labels = self.job["spec"]["template"]["metadata"]["labels"]
        owner = {"uid": self.job["metadata"]["uid"]}
        metadata = {"name": NAME, "uid": "uid-of-pod", "labels": dict(labels), "ownerReferences": [owner]}
        self.objects["v1/Pod", NAME] = {"metadata": metadata, "spec": {"nodeName": "node1"}, "status": status}

    def end(self, code: int = 0) -> None:
        self.start({"terminated": {"exitCode": code}}, "Succeeded" if code == 0 else "Failed")

    def lose(self) -> None:
        """The pod is drained and gone."""
        del self.objects["v1/Pod", NAME]

    def end_job(self, kind: str, reason: str, message: str) -> None:
        self.job["status"] = {"conditions": [{"type": kind, "status": "True", "reason": reason, "message": message}]}

    def fail(self, *errors: Exception) -> None:
        """The next requests for pods fail with these errors."""
        left = [*errors]

        def refuse(verb: str, kind: str, name: str) -> None:
            if left and (verb, kind) == ("list", "v1/Pod"):
                raise left.pop(0)

        self.refuse = refuse

    def submit_workers(self) -> None:
        """The script submits the job of `--mesh`: its Job has no pods, as in a queue, or with a quota that is used up."""
        job = KubernetesJob(self.namespace)
        job.add_mesh("workers", 1, image_spec=ImageSpec("registry.example.com/monarch:1"), labels={k8s_run.RUN_LABEL: self.run})
        launcher = KubernetesLauncher(job._args, cluster=lambda: self, apply_id=JOB, title="t")
        launcher.submit(launcher.plan(), bytes(32))


def nothing() -> None:
    pass


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.fixture
def namespace(monkeypatch: pytest.MonkeyPatch) -> Namespace:
    made = Namespace()
    monkeypatch.setattr(k8s_run, "time", made)
    return made


Captured = pytest.CaptureFixture[bytes]


def _asked_again(captured: bytes) -> list[str]:
    return [line for line in captured.decode().splitlines() if line.endswith("; asking again")]


@pytest.mark.parametrize("status", [429, 500, 503, 520])
def test_restart_of_kubelet_does_not_end_a_run(namespace: Namespace, capsysbinary: Captured, status: int) -> None:
    failure = ApiError("the cluster refused to get pods/log", title=namespace.title, cause="connection refused", status=status)
    namespace.steps = [namespace.start, *[nothing] * 5]
    namespace.output = [[b"one\n"], [failure], [failure], [failure], [b"one\n", b"two\n", lambda: namespace.end(3)]]
    assert k8s_run.run(namespace, ASKED) == 3
    out, err = capsysbinary.readouterr()
    assert out == b"one\ntwo\n"
    assert _asked_again(err) == ["monarch: the cluster refused to get pods/log: connection refused; asking again"]
    assert namespace.objects == {}


def test_unreachable_api_server_does_not_end_a_run(namespace: Namespace, capsysbinary: Captured) -> None:
    namespace.steps = [namespace.start, lambda: namespace.fail(*[AWAY] * 100), *[nothing] * 100, namespace.end]
    namespace.output = [[b"one\n", AWAY], [b"one\n", b"two\n"]]
    assert k8s_run.run(namespace, ASKED) == 0
    out, err = capsysbinary.readouterr()
    assert out == b"one\ntwo\n"
    assert _asked_again(err) == ["monarch: the API server https://memory.example cannot be reached: refused; asking again"]


def test_each_outage_is_reported_once(namespace: Namespace, capsysbinary: Captured) -> None:
    def away() -> None:
        namespace.fail(*[AWAY] * 3)

    namespace.steps = [namespace.start, away, *[nothing] * 3, away, *[nothing] * 2, namespace.end]
    assert k8s_run.run(namespace, ASKED) == 0
    assert len(_asked_again(capsysbinary.readouterr().err)) == 2


def test_temporary_denial_does_not_end_a_run(namespace: Namespace) -> None:
    namespace.steps = [namespace.start, lambda: namespace.fail(AWAY, AWAY, DENIED, DENIED), *[nothing] * 4, namespace.end]
    assert k8s_run.run(namespace, ASKED) == 0


def test_right_that_is_taken_away_ends_a_run(namespace: Namespace) -> None:
    namespace.steps = [namespace.start, lambda: namespace.fail(*[DENIED] * 200), *[nothing] * 200]
    with pytest.raises(ApiError, match="no right to list pods"):
        k8s_run.run(namespace, ASKED)


def test_missing_right_is_an_error_at_once(namespace: Namespace) -> None:
    namespace.fail(DENIED)
    with pytest.raises(ApiError, match="no right to list pods"):
        k8s_run.run(namespace, ASKED)
    assert namespace.objects == {}


def test_refusal_that_does_not_pass_ends_a_run(namespace: Namespace) -> None:
    namespace.steps = [namespace.start, lambda: namespace.fail(ApiError("pods is not valid", status=422))]
    with pytest.raises(ApiError, match="pods is not valid"):
        k8s_run.run(namespace, ASKED)


@pytest.mark.parametrize("failure", [AWAY, RESTARTS], ids=["unreachable", "refused"])
def test_failure_before_the_script_runs_becomes_an_error(namespace: Namespace, failure: Exception, capsysbinary: Captured) -> None:
    namespace.steps = [lambda: namespace.fail(*[failure] * 50), *[nothing] * 200]
    with pytest.raises(type(failure), match=str(failure).splitlines()[0]):
        k8s_run.run(namespace, ASKED)
    # The server got time.
    assert len(_asked_again(capsysbinary.readouterr().err)) == 1


def test_lost_pod_is_an_error_with_its_reason(namespace: Namespace) -> None:
    def fail_job() -> None:
        namespace.end_job("Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit")

    namespace.steps = [namespace.start, namespace.lose, fail_job]
    with pytest.raises(JobEndedError) as caught:
        k8s_run.run(namespace, ASKED)
    assert "the pod of the script is gone\n" in str(caught.value)
    assert "has failed: BackoffLimitExceeded: Job has reached the specified backoff limit" in str(caught.value)
    assert (caught.value.state, caught.value.reason) == ("failed", "BackoffLimitExceeded")
    assert namespace.objects == {}


@pytest.mark.parametrize("is_deleting", [False, True])
def test_deleted_job_is_an_error(namespace: Namespace, is_deleting: bool) -> None:
    def remove() -> None:
        namespace.lose()
        if is_deleting:
            namespace.job["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z"
        else:
            del namespace.objects["batch/v1/Job", namespace.run]

    namespace.steps = [namespace.start, remove]
    with pytest.raises(JobEndedError, match="is being deleted" if is_deleting else "is gone from namespace 'research'"):
        k8s_run.run(namespace, ASKED)


def test_pod_of_a_complete_job_has_code_zero(namespace: Namespace) -> None:
    def complete() -> None:
        namespace.lose()
        namespace.end_job("Complete", "CompletionsReached", "")

    namespace.steps = [namespace.start, complete]
    assert k8s_run.run(namespace, ASKED) == 0


def test_running_job_without_a_pod_is_waited_for(namespace: Namespace) -> None:
    namespace.steps = [nothing, nothing, namespace.start, namespace.lose, nothing, namespace.start, lambda: namespace.end(5)]
    assert k8s_run.run(namespace, ASKED) == 5


def test_eviction_is_named_beside_the_exit_code(namespace: Namespace, capsysbinary: Captured) -> None:
    def evict() -> None:
        condition = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "evicted"}
        namespace.start({"terminated": {"exitCode": 143}}, "Failed", conditions=[condition])

    namespace.steps = [namespace.start, evict]
    assert k8s_run.run(namespace, ASKED) == 143
    assert b"was removed while the script ran: EvictionByEvictionAPI: evicted\n" in capsysbinary.readouterr().err


def test_cut_log_is_shown_once(namespace: Namespace, capsysbinary: Captured) -> None:
    namespace.steps = [namespace.start, *[nothing] * 3]
    cut = [[b"one\n", b"tw", AWAY], [b"o", AWAY], [b"one\nt", b"wo\nth", AWAY], [b"one\ntwo\nthree\n", namespace.end]]
    namespace.output = [[*parts] for parts in cut]
    assert k8s_run.run(namespace, ASKED) == 0
    out, err = capsysbinary.readouterr()
    assert out == b"one\ntwo\nthree\n"
    # Proxies cut a log that is silent.
    assert _asked_again(err) == []


def test_interrupted_log_is_shown_to_its_end(namespace: Namespace, capsysbinary: Captured) -> None:
    namespace.steps = [namespace.start, nothing, nothing]
    namespace.output = [[b"one\n", lambda: namespace.end(2), AWAY], [RESTARTS], [b"one\ntwo\n"]]
    assert k8s_run.run(namespace, ASKED) == 2
    assert capsysbinary.readouterr().out == b"one\ntwo\n"


def test_output_of_an_ended_script_has_a_timeout(namespace: Namespace, capsysbinary: Captured) -> None:
    namespace.steps = [namespace.start, *[nothing] * 100]
    namespace.output = [[b"one\n", lambda: namespace.end(2), AWAY]]
    namespace.output.extend([RESTARTS] for _ in range(200))
    assert k8s_run.run(namespace, ASKED) == 2
    out, err = capsysbinary.readouterr()
    assert out == b"one\n"
    assert b"the end of the script's output cannot be read: the cluster refused to get pods/log: dial tcp" in err


def test_ctrl_c_removes_workers_that_have_no_pods(namespace: Namespace) -> None:
    namespace.steps = [namespace.start]
    namespace.output = [[b"one\n", namespace.submit_workers, interrupt]]
    with pytest.raises(KeyboardInterrupt):
        k8s_run.run(namespace, ASKED)
    assert namespace.objects == {}


def test_workers_are_removed_after_their_script(namespace: Namespace) -> None:
    def end() -> None:
        namespace.submit_workers()
        namespace.end(143)

    namespace.ends_pods = False
    namespace.steps = [namespace.start, nothing, end]
    namespace.output = [[interrupt]]
    with pytest.raises(KeyboardInterrupt):
        k8s_run.run(namespace, ASKED)
    assert namespace.names("v1/ConfigMap") == namespace.names("batch/v1/Job") == []
    assert namespace.graces == [5]


def test_stuck_pod_is_removed_by_force(namespace: Namespace) -> None:
    namespace.ends_pods = False
    namespace.steps = [namespace.start, *[nothing] * 100]
    namespace.output = [[namespace.submit_workers, interrupt]]
    with pytest.raises(KeyboardInterrupt):
        k8s_run.run(namespace, ASKED)
    assert (namespace.objects, namespace.graces) == ({}, [5, 0])


def test_second_ctrl_c_leaves_only_the_ending_pod(namespace: Namespace) -> None:
    namespace.ends_pods = False
    namespace.steps = [namespace.start, interrupt]
    namespace.output = [[namespace.submit_workers, interrupt]]
    with pytest.raises(KeyboardInterrupt):
        k8s_run.run(namespace, ASKED)
    assert list(namespace.objects) == [("v1/Pod", NAME)]


def test_workers_of_a_stateful_set_are_removed(namespace: Namespace) -> None:
    def made() -> None:
        labels = {k8s_run.RUN_LABEL: namespace.run, names.JOB_LABEL: JOB}
        owner = namespace.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": names.anchor_name(JOB)}})
        reference = {"uid": owner["metadata"]["uid"]}
        metadata = {"name": "workers", "labels": labels, "ownerReferences": [reference]}
        namespace.apply({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata})

    namespace.steps = [namespace.start]
    namespace.output = [[made, interrupt]]
    with pytest.raises(KeyboardInterrupt):
        k8s_run.run(namespace, ASKED)
    assert namespace.objects == {}


@pytest.mark.parametrize(
    ("denied", "words"),
    [
        # A user who may not see StatefulSets cannot grant the script the right to make them.
        (("list", "apps/v1/StatefulSet"), b""),
        # A failed step does not skip the next one.
        (("delete", "batch/v1/Job"), b"may not be removed: no right to list pods"),
    ],
)
def test_partly_denied_removal_does_the_rest(namespace: Namespace, capsysbinary: Captured, denied: tuple[str, str], words: bytes) -> None:
    def refuse(verb: str, kind: str, name: str) -> None:
        if (verb, kind) == denied:
            raise DENIED

    namespace.refuse = refuse
    namespace.steps = [namespace.start]
    namespace.output = [[namespace.submit_workers, namespace.end]]
    assert k8s_run.run(namespace, ASKED) == 0
    assert namespace.names("v1/ConfigMap") == namespace.names("batch/v1/Job") == []
    err = capsysbinary.readouterr().err
    assert words in err and err.count(b"\n") == (3 if words else 1)


def test_sigterm_ends_the_script_and_its_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Process 1 of a container gets no signal without a handler."""
    script = tmp_path / "script.py"
    script.write_text(
        "import signal, sys\n"
        "assert callable(signal.getsignal(signal.SIGTERM))\n"
        "try:\n"
        "    signal.raise_signal(signal.SIGTERM)\n"
        "finally:\n"
        "    sys.modules['monarch_job'].ends.append('script')\n"
    )
    ends: list[str] = []
    job = SimpleNamespace(kill=lambda: ends.append("job"))
    monkeypatch.setitem(sys.modules, "monarch_job", SimpleNamespace(job=job, ends=ends))  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(sys, "argv", ["client.py", str(script)])
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as caught:
            exec(k8s_run._PROGRAM, {"__name__": "__main__"})
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (caught.value.code, ends) == (143, ["script", "job"])
