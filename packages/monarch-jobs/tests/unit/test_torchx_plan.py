"""What a TorchXJob submits, and which arguments it refuses before anything is made."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torchx.specs import AppDef, BindMount, Resource, RetryPolicy, Role

from monarch.job import job_loads
from monarch.job.torchx import TorchXJob
from monarch.job.torchx.application import from_json, places, to_json


def application() -> AppDef:
    mounts = [BindMount("/data", "/data", read_only=True)]
    trainers = Role(
        "trainers",
        image="image:1",
        entrypoint="train.py",
        args=["--token", "abcdef"],
        env={"TOKEN": "abcdef"},
        num_replicas=2,
        max_retries=1,
        retry_policy=RetryPolicy.REPLICA,
        resource=Resource(cpu=2, gpu=1, memMB=512, capabilities={"a": 1}),
        mounts=list(mounts),
    )
    return AppDef("app", [trainers, Role("ps", image="", entrypoint="serve.py")], {"owner": "me"})


def test_application_survives_json() -> None:
    encoded = to_json(application())
    assert from_json(json.loads(json.dumps(encoded))) == application()


def test_worker_takes_place_of_command_and_environment(tmp_path: Path) -> None:
    job = TorchXJob(application(), "slurm", {"partition": "p"}, workspace=str(tmp_path))
    plan = job.plan()
    assert plan == TorchXJob(application(), "slurm", {"partition": "p"}, workspace=str(tmp_path)).plan()
    assert "abcdef" not in str(plan)
    assert "TOKEN" not in str(plan)
    shown = json.loads(plan.text)
    assert (shown["scheduler"], shown["scheduler_cfg"]) == ("slurm", {"partition": "p"})
    script = f"{tmp_path}/APPLY_ID/worker.sh"
    trainers, ps = shown["app"]["roles"]
    assert (trainers["entrypoint"], trainers["args"], trainers["env"]) == ("/bin/sh", [script, "0", "${replica_id}"], {})
    assert ps["args"] == [script, "2", "${replica_id}"]
    assert (trainers["num_replicas"], trainers["resource"]["memMB"], trainers["image"]) == (2, 512, "image:1")
    assert trainers["mounts"] == [{"type": "BindMount", "src_path": "/data", "dst_path": "/data", "read_only": True}]
    subprocess.run(["sh", "-n"], input=plan.files["worker.sh"], text=True, check=True)
    assert f"{sys.executable} -c" in plan.files["worker.sh"]
    assert "tcp://*:22222" in plan.files["worker.sh"]


def test_job_of_other_image_cannot_run_it() -> None:
    other = application()
    other.roles[0].image = "image:2"
    assert TorchXJob(application()).can_run(TorchXJob(application()))
    assert not TorchXJob(application()).can_run(TorchXJob(other))


def test_saved_job_is_the_same_job() -> None:
    job = TorchXJob(application(), python_exe="/opt/python", monarch_port=4000)
    assert job_loads(job.dumps()).plan() == job.plan()


def test_ranks_follow_the_roles() -> None:
    assert places({"a": 2, "b": 1, "c": 2}) == {"a": [0, 1], "b": [2], "c": [3, 4]}


def _of_roles(*roles: Role) -> AppDef:
    return AppDef("app", list(roles))


@pytest.mark.parametrize(
    ("made", "error", "words"),
    [
        (lambda: TorchXJob(["torchrun"]), TypeError, "appdef is a torchx.specs.AppDef, not list"),  # pyright: ignore[reportArgumentType]
        (lambda: TorchXJob(AppDef("app")), ValueError, "'app' has no role"),
        (lambda: TorchXJob(_of_roles(Role("a/b", image=""))), ValueError, "role 'a/b'"),
        (lambda: TorchXJob(_of_roles(Role("a", image=""), Role("a", image=""))), ValueError, "two roles have the name 'a'"),
        (lambda: TorchXJob(_of_roles(Role("a", image="", num_replicas=0))), ValueError, "'a' needs at least one host, not 0"),
        (lambda: TorchXJob(_of_roles(Role("a", image="", metadata={"x": object()}))), TypeError, "role 'a'"),
        (lambda: TorchXJob(application(), "mast_conda"), ValueError, "no 'mast_conda' here.*there is: .*local_cwd.*slurm"),
        (lambda: TorchXJob(application(), "nothing"), ValueError, "no 'nothing' here; there is: "),
        (lambda: TorchXJob(application(), scheduler_cfg={"a": object()}), TypeError, "scheduler_cfg.a"),
        (lambda: TorchXJob(application(), workspace="a\nb"), ValueError, "workspace"),
        (lambda: TorchXJob(application(), monarch_port=0), ValueError, "monarch_port"),
        (lambda: TorchXJob(application(), join_timeout=0), ValueError, "join_timeout"),
    ],
)
def test_wrong_argument_is_named(made: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        made()


def test_missing_package_is_named_with_the_extra() -> None:
    code = (
        "import sys; sys.modules['torchx'] = None\n"
        "from monarch.job import BackendMissingError\n"
        "try:\n    import monarch.job.torchx\nexcept BackendMissingError as e:\n    print(e)"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert "needs the package torchx" in done.stdout
    assert "pip install 'monarch-jobs[torchx]'" in done.stdout
