"""Rules of access that need no server: proxies of the environment, kubectl that fails, and quotas that matter to a job."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest

from monarch.job import CredentialsError, JobError
from monarch.job._cli import k8s_doctor
from monarch.job.kubernetes.access import kept_forward
from monarch.job.kubernetes.access.client import Cluster
from monarch.job.kubernetes.access.connection import ApiConnection, Endpoint
from monarch.job.kubernetes.access.forward import Forward, UpgradeMissingError
from monarch.job.kubernetes.access.identity import Identity
from monarch.job.kubernetes.access.kubectl_forward import KubectlForward
from monarch.job.kubernetes.access.proxy_variables import proxy_of_environment
from monarch.job.kubernetes.manifests import rbac

PROXY = "http://proxy.example:3128"


@pytest.fixture(autouse=True)
def without_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


# The cases are those of the tests of golang.org/x/net/http/httpproxy, and of the rules that its page describes.
@pytest.mark.parametrize(
    ("no_proxy", "host", "is_direct"),
    [
        ("", "api.example", False),
        ("", "localhost", True),
        ("", "127.0.0.1", True),
        ("", "127.8.8.8", True),
        ("", "::1", True),
        ("", "::ffff:127.0.0.1", True),
        ("*", "api.example", True),
        ("other, *", "10.1.2.3", True),
        ("api.example", "api.example", True),
        ("example", "api.example", True),
        ("API.Example ", "api.example", True),
        ("example", "api.anexample", False),
        (".example", "api.example", True),
        (".api.example", "api.example", False),
        ("*.example", "api.example", True),
        ("*.api.example", "api.example", False),
        ("api.example:6443", "api.example", True),
        ("api.example:443", "api.example", False),
        (".example:6443", "api.example", True),
        ("10.1.2.3", "10.1.2.3", True),
        ("10.1.2.3:6443", "10.1.2.3", True),
        ("10.1.2.3:443", "10.1.2.3", False),
        ("10.1.2.3", "10.1.2.30", False),
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.1.2.3/8", "10.9.9.9", True),
        ("10.0.0.0/8", "11.1.2.3", False),
        ("10.0.0.0/8", "10.example", False),
        ("10.0.0.0/x", "10.0.0.0", False),
        ("2001:db8::/32", "2001:db8::7", True),
        ("2001:db8::7", "2001:db8:0::7", True),
        ("[2001:db8::7]:6443", "2001:db8::7", True),
        ("[2001:db8::7]:443", "2001:db8::7", False),
        (",, ,.,:6443", "api.example", False),
    ],
)
def test_no_proxy_is_read_as_kubectl_reads_it(monkeypatch: pytest.MonkeyPatch, no_proxy: str, host: str, is_direct: bool) -> None:
    monkeypatch.setenv("HTTPS_PROXY", PROXY)
    monkeypatch.setenv("NO_PROXY", no_proxy)
    assert proxy_of_environment("https", host, 6443) == (None if is_direct else PROXY)


def test_proxy_variable_matches_the_scheme_upper_case_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert proxy_of_environment("https", "api.example", 443) is None
    monkeypatch.setenv("https_proxy", "http://lower.example")
    assert proxy_of_environment("https", "api.example", 443) == "http://lower.example"
    monkeypatch.setenv("HTTPS_PROXY", PROXY)
    assert proxy_of_environment("https", "api.example", 443) == PROXY
    assert proxy_of_environment("http", "api.example", 80) is None


@pytest.mark.parametrize("given", ["proxy.example:3128", "10.0.0.1:3128", "ada:pw@proxy.example:3128", "proxy.example"])
def test_proxy_without_a_scheme_is_one_of_http(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("HTTPS_PROXY", given)
    assert proxy_of_environment("https", "api.example", 443) == f"http://{given}"


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kubectl that fails at once."""
    path = tmp_path / "bin" / "kubectl"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\necho 'error: pods \"p\" is forbidden' >&2\nexit 1\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.usefixtures("kubectl")
@pytest.mark.parametrize("local", [0, 23456])
def test_failed_kubectl_is_an_error_with_its_output(local: int) -> None:
    forward = KubectlForward([], "p", 26600, local=local)
    with pytest.raises(JobError, match='kubectl port-forward to p failed\n  error: pods "p" is forbidden'):
        forward.start()
    assert not forward.is_busy


@pytest.mark.usefixtures("kubectl")
def test_keeper_holds_no_forward_that_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoWebsocket:
        def __init__(self, *arguments: object, **named: object) -> None:
            pass

        def start(self) -> NoReturn:
            raise UpgradeMissingError("no websocket")

    monkeypatch.setattr(kept_forward, "Forward", NoWebsocket)
    config = tmp_path / "config"
    entries = {"clusters": [{"name": "c", "cluster": {"server": "https://api.example"}}], "current-context": "x"}
    config.write_text(json.dumps(entries | {"contexts": [{"name": "x", "context": {"cluster": "c"}}]}))
    service = kept_forward.KeptForward()
    asked = {"kubeconfig": {"path": str(config)}, "server": None, "namespace": "n", "pod": "p", "port": 26600, "title": "t"}
    with pytest.raises(JobError, match="kubectl port-forward to p failed"):
        service.start({}, asked)
    assert not service.busy()


def test_login_of_a_forward_precedes_its_first_connection() -> None:
    class Login(Identity):
        def headers(self) -> NoReturn:
            raise CredentialsError(f"asked by {threading.current_thread().name}", path="file")

    connection = ApiConnection(Endpoint("https://api.example", "file", proxy=""), Login())
    with pytest.raises(CredentialsError, match=f"asked by {threading.current_thread().name}"):
        Forward(Cluster(connection, "n"), "p", 26600).start()


class Quotas:
    """A cluster with one quota; `amounts` are used and hard."""

    namespace = "team"

    def __init__(self, amounts: dict[str, str]) -> None:
        self.used = {name: amount.partition("/")[0] for name, amount in amounts.items()}
        self.hard = {name: amount.partition("/")[2] for name, amount in amounts.items()}

    def get_path(self, path: str) -> tuple[int, bytes]:
        assert path == "/api/v1/namespaces/team/resourcequotas"
        found: dict[str, Any] = {"metadata": {"name": "q"}, "status": {"hard": self.hard, "used": self.used}}
        return 200, json.dumps({"items": [found]}).encode()


def quota(amounts: dict[str, str], mode: rbac.Mode = "native", workload: str = "job") -> k8s_doctor.Check:
    (found,) = k8s_doctor._quota(cast("Cluster", Quotas(amounts)), mode, workload)
    return found


@pytest.mark.parametrize(
    "name",
    [
        "services.loadbalancers",
        "services.nodeports",
        "count/deployments.apps",
        "persistentvolumeclaims",
        "requests.storage",
        "gold.storageclass.storage.k8s.io/requests.storage",
        "requests.example.com/device",
        # Nothing of a job that is made of a Job.
        "count/statefulsets.apps",
    ],
)
def test_quota_of_unused_resources_is_no_fault(name: str) -> None:
    assert quota({name: "0/0", "pods": "3/50"}) == ("ok", "quota q", f"{name} 0/0, pods 3/50")


@pytest.mark.parametrize(
    "name",
    [
        "pods",
        "count/pods",
        "cpu",
        "memory",
        "requests.cpu",
        "requests.memory",
        "limits.cpu",
        "limits.memory",
        "configmaps",
        "count/configmaps",
        "secrets",
        "services",
        "count/services",
        "count/jobs.batch",
        "requests.nvidia.com/gpu",
        "requests.nvidia.com/mig-1g.5gb",
    ],
)
def test_exhausted_quota_of_a_used_resource_is_fault(name: str) -> None:
    assert quota({name: "4/4"}) == ("FAIL", "quota q", f"{name} 4/4; used up: {name}")
    assert quota({name: "3/4"}).state == "ok"


@pytest.mark.parametrize(("mode", "workload"), [("native", "statefulset"), ("monarchmesh", "job")])
def test_quota_of_stateful_sets_counts_where_used(mode: rbac.Mode, workload: str) -> None:
    assert quota({"count/statefulsets.apps": "1/1"}, mode, workload).state == "FAIL"
