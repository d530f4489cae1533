"""The Helm chart makes the objects that `monarch k8s install` prints. Where there is Helm, the chart is checked with it as well."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart_text import rendered

from monarch.job._cli import k8s_install
from monarch.job.kubernetes.manifests import install, rbac, yaml_text

Object = dict[str, Any]
CHART = Path(__file__).parents[2] / "charts/monarch-operator"
NAMESPACE = "123"

EVERYTHING: Object = {
    "manager": {
        "replicas": 3,
        "image": {"repository": "registry.example.com/operator", "tag": "7", "pullPolicy": "Always"},
        "args": ["--leader-elect", "--namespace=a b"],
        "env": [{"name": "HTTPS_PROXY", "value": "http://proxy.example.com"}],
        "podSecurityContext": {"fsGroup": 7},
        "securityContext": {"privileged": False},
        "resources": {"limits": {"cpu": "1"}},
    },
    "rbacHelpers": {"enable": True},
    "clientRbac": {"enable": True},
    "crd": {"keep": False},
    "metrics": {"enable": True, "port": 9000},
    "prometheus": {"enable": True},
}
CASES: dict[str, Object] = {
    "defaults": {},
    "everything": EVERYTHING,
    "without the definition": {"crd": {"enable": False}},
    "metrics without a monitor": {"metrics": {"enable": True}},
    "monitor without metrics": {"prometheus": {"enable": True}},
}


def _sorted(objects: list[Object]) -> list[Object]:
    return sorted(objects, key=lambda item: (item["kind"], item["metadata"]["name"]))


def _expected(values: Object) -> list[Object]:
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    return _sorted(install.operator_objects(values, NAMESPACE, version))


def test_values_have_the_same_defaults() -> None:
    assert yaml.safe_load((CHART / "values.yaml").read_text()) == install.VALUES


@pytest.mark.parametrize("case", CASES)
def test_chart_makes_the_objects_of_the_function(case: str) -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    values = {
        "Values": install.with_defaults(CASES[case]),
        "Release": {"Namespace": NAMESPACE},
        "Chart": {"AppVersion": chart["appVersion"]},
    }
    found: list[Object] = []
    for path in sorted((CHART / "templates").iterdir()):
        found += [item for item in yaml.safe_load_all(rendered(path.read_text(), values)) if item]
    assert _sorted(found) == _expected(CASES[case])


@pytest.mark.skipif(shutil.which("helm") is None, reason="Helm is not installed")
@pytest.mark.parametrize("case", CASES)
def test_helm_makes_the_objects_of_the_function(case: str, tmp_path: Path) -> None:
    values = tmp_path / "values.json"
    values.write_text(json.dumps(CASES[case]))
    command = ["helm", "template", "release", str(CHART), "--namespace", NAMESPACE, "--values", str(values)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=25)
    assert done.returncode == 0, done.stderr
    assert _sorted([item for item in yaml.safe_load_all(done.stdout) if item]) == _expected(CASES[case])


def test_version_of_the_chart_is_the_wheel_s() -> None:
    import tomllib

    project = tomllib.loads((CHART.parents[1] / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == project["version"]


def test_unknown_value_is_refused() -> None:
    with pytest.raises(ValueError, match="no value 'manager.imag'.*manager.image"):
        install.operator_objects({"manager": {"imag": 1}})
    with pytest.raises(ValueError, match="no value 'managr'"):
        install.operator_objects({"managr": {}})


def test_printed_objects_can_be_read_again() -> None:
    objects = install.operator_objects(EVERYTHING)
    assert [*yaml.safe_load_all(yaml_text.documents(objects))] == objects


def test_roles_have_no_wildcard_and_no_escalation() -> None:
    found = [
        *(rbac.rules(mode, forward=True, join_secret=True) for mode in rbac.MODES),
        *(rbac.rules("native", workload=workload) for workload in ("job", "statefulset", "jobset")),
        rbac.client_rules(),
        rbac.leader_rules(),
    ]
    for rule in (rule for rules in found for rule in rules):
        words = {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
        assert not words & {"*", "escalate", "bind", "impersonate", "pods/exec"}


def test_client_role_has_all_modes() -> None:
    def rights(rules: list[Object]) -> set[tuple[str, str, str]]:
        return {
            (group, name, verb) for rule in rules for group in rule["apiGroups"] for name in rule["resources"] for verb in rule["verbs"]
        }

    whole = rights(rbac.client_rules())
    modes = [rights(rbac.rules(mode, forward=True, join_secret=True)) for mode in ("attach", "monarchmesh")]
    modes += [rights(rbac.rules("native", workload=workload)) for workload in ("job", "statefulset", "jobset")]
    assert whole == set().union(*modes)


def test_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="no mode 'admin'"):
        rbac.rules("admin")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no workload 'pod'"):
        rbac.rules("native", workload="pod")


def test_each_subject_has_rights_of_its_own() -> None:
    """One that is granted later takes nothing from another one, whatever its mode."""
    subjects: list[dict[str, str]] = [{"user": "ada"}, {"user": "bob"}, {"group": "ada"}, {"user": "a/b%"}, {"user": "x" * 500}, {}]
    subjects += [{"service_account": "trainer"}]
    found: list[tuple[str, str]] = []
    for subject in subjects:
        for mode, workload in (("native", "job"), ("native", "statefulset"), ("attach", "job"), ("monarchmesh", "job")):
            objects = k8s_install.grant("team", rbac.rules(mode), mode=mode, workload=workload, **subject)  # type: ignore[arg-type]
            role, binding = objects[-2:]
            assert role["metadata"] == binding["metadata"] and binding["roleRef"]["name"] == role["metadata"]["name"]
            found.append((role["kind"], role["metadata"]["name"]))
    assert len(set(found)) == len(found) and all("/" not in name and "%" not in name and len(name) < 253 for _, name in found)
    assert ("Role", "monarch-client-user-ada") in found and ("Role", "monarch-client") in found
