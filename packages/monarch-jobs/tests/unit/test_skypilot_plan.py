"""Tasks of SkyPilot jobs, and what their constructor refuses. Nothing here needs SkyPilot."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monarch.job import job_loads
from monarch.job.skypilot import SkyPilotJob
from monarch.job.skypilot.task import GPU_IMAGE, version

PLANS = Path(__file__).parent / "plans"


def _everything() -> SkyPilotJob:
    return SkyPilotJob(
        {"trainers": 4, "a b": 1},
        resources={"infra": "kubernetes", "accelerators": "H100:8", "cpus": "16+", "use_spot": True, "ports": [8080]},
        cluster_name="my-cluster",
        monarch_port=31000,
        idle_minutes_to_autostop=10,
        python_exe="/opt/my env/bin/python",
        setup_commands="apt-get install -y numactl\n\necho 'set up'",
        workdir="~/work",
        file_mounts={"/data": "s3://bucket/data", "~/model": "./model"},
        envs={"NCCL_DEBUG": "INFO", "ANSWER": "yes", "EMPTY": ""},
        join_timeout=30,
    )


@pytest.mark.parametrize(("name", "job"), [("everything", _everything()), ("least", SkyPilotJob({"hosts": 2}))])
def test_plan_equals_the_stored_one(name: str, job: SkyPilotJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monarch.job.skypilot.task.version", lambda: "3.11 0.1.0")
    monkeypatch.setattr("monarch.job.skypilot.task._wheels", lambda: ["monarch-core==0.1.0", "monarch-jobs==0.1.0"])
    path = PLANS / f"skypilot_{name}.yaml"
    if os.environ.get("MONARCH_WRITE_PLANS"):
        path.write_text(str(job.plan()))
    assert str(job.plan()) == path.read_text()
    again = job_loads(job.dumps())
    assert isinstance(again, SkyPilotJob) and again.plan() == job.plan() and again.can_run(job)


def test_text_is_read_back_as_it_was() -> None:
    """By a YAML reader, where this environment has one: whatever is text must come back as that text."""
    yaml = pytest.importorskip("yaml")
    texts = ["yes", "1", "1e3", "a: b", "# no", "'", '"', "\\n", "two\nlines", " space", "tab\there", "ä", "~", "", "{x}", "0x1F", "- a"]
    job = SkyPilotJob({"a": 1}, envs={f"E{number}": text for number, text in enumerate(texts)}, setup_commands="a\n  b:\n\n#c\n\td  \n")
    found = yaml.safe_load(job.plan().text)
    assert list(found["envs"].values()) == texts
    assert found["setup"].startswith("a\n  b:\n\n#c\n\td  \nwanted=") and found["num_nodes"] == 1


def test_scripts_are_scripts() -> None:
    for text in (_everything().plan().text, SkyPilotJob({"a": 1}, setup_commands="true").plan().text):
        for name in ("setup", "run"):
            block = text.split(f"\n{name}: |\n")[1].split("\nrun: |")[0]
            script = "\n".join(line[2:] for line in block.splitlines())
            done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
            assert done.returncode == 0 and not done.stderr, done.stderr


@pytest.mark.parametrize(
    ("resources", "has_image"),
    [
        (None, False),
        ({"cpus": 4}, False),
        ({"accelerators": {"H100": 8}}, True),
        ({"any_of": [{"accelerators": "H100"}, {"accelerators": "A100"}]}, True),
        ({"any_of": [{"accelerators": "H100"}, {"cpus": 4}]}, False),
        ({"infra": "slurm/main", "accelerators": "H100"}, False),
    ],
)
def test_image_comes_with_gpus(resources: dict[str, Any] | None, has_image: bool) -> None:
    assert (GPU_IMAGE in SkyPilotJob({"a": 1}, resources).plan().text) is has_image


def test_given_image_is_kept() -> None:
    text = SkyPilotJob({"a": 1}, {"accelerators": "H100", "image_id": "docker:mine"}).plan().text
    assert GPU_IMAGE not in text and 'image_id: "docker:mine"' in text


def test_resources_of_skypilot() -> None:
    class Resources:
        def to_yaml_config(self) -> dict[str, object]:
            return {"infra": "aws", "accelerators": {"A100": 1}}

    job = SkyPilotJob({"a": 1}, Resources())
    assert "infra: aws\n" in job.plan().text and job_loads(job.dumps()).plan() == job.plan()


def test_nodes_get_the_version_of_the_client() -> None:
    text = SkyPilotJob({"a": 1}).plan().text
    assert f"wanted='{version()}'" in text and " -m pip install --quiet " in text
    assert version().split()[0] == f"{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.mark.parametrize(
    ("meshes", "arguments", "kind", "text"),
    [
        ({}, {}, ValueError, "no mesh"),
        (["a"], {}, TypeError, "meshes is a dict"),
        ({"a": 0}, {}, ValueError, "at least one host"),
        ({"a": "2"}, {}, TypeError, "is an int"),
        ({"telemetry_url": 1}, {}, ValueError, "cannot be named"),
        ({"a": 1}, {"cluster_name": "-x"}, ValueError, "cluster_name: is a letter"),
        ({"a": 1}, {"cluster_name": "x" * 61}, ValueError, "60 characters"),
        ({"a": 1}, {"cluster_name": "a; rm -rf /"}, ValueError, "cluster_name"),
        ({"a": 1}, {"monarch_port": 0}, ValueError, "monarch_port"),
        ({"a": 1}, {"monarch_port": "22222"}, TypeError, "monarch_port"),
        ({"a": 1}, {"idle_minutes_to_autostop": -1}, ValueError, "idle_minutes_to_autostop"),
        ({"a": 1}, {"python_exe": "-c"}, ValueError, "python_exe: is empty, begins with '-'"),
        ({"a": 1}, {"python_exe": "python\nid"}, ValueError, "python_exe"),
        ({"a": 1}, {"setup_commands": ["pip install x"]}, TypeError, "setup_commands"),
        ({"a": 1}, {"setup_commands": "a\x00b"}, ValueError, "control character"),
        ({"a": 1}, {"workdir": ""}, ValueError, "workdir"),
        ({"a": 1}, {"file_mounts": {"data": "s3://b"}}, ValueError, "'data' is no path on the nodes"),
        ({"a": 1}, {"file_mounts": {"/data": " "}}, ValueError, "'/data' has no source"),
        ({"a": 1}, {"envs": {"a-b": "1"}}, ValueError, "'a-b' is no name of a variable"),
        ({"a": 1}, {"envs": {"SKYPILOT_NODE_RANK": "1"}}, ValueError, "belongs to SkyPilot"),
        ({"a": 1}, {"envs": {"A": 1}}, TypeError, "envs.A"),
        ({"a": 1}, {"join_timeout": 0}, ValueError, "join_timeout"),
        ({"a": 1}, {"resources": "H100:8"}, TypeError, "resources is a sky.Resources"),
        ({"a": 1}, {"resources": {"cpus": object()}}, TypeError, "resources"),
    ],
)
def test_invalid_arguments_are_refused(meshes: Any, arguments: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        SkyPilotJob(meshes, **arguments)


def test_nodes_get_the_wheels_that_the_client_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mounts and telemetry have processes on the hosts."""

    def having(name: str) -> list[SimpleNamespace]:
        return [SimpleNamespace(version=found)] if (found := {"monarch-core": "0.2.0", "monarch-fs": "0.1.4"}.get(name)) else []

    monkeypatch.setattr("monarch.job.skypilot.task.distributions", having)
    wheels = "monarch-core==0.2.0 monarch-fs==0.1.4 monarch-jobs==0.2.0"
    assert f" --quiet {wheels}\n" in str(SkyPilotJob({"a": 1}).plan())
