"""The example of SkyPilot: the job's plan, and the tasks of both as SkyPilot itself reads them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools import side_venv
from tools.project import ROOT

EXAMPLE = ROOT / "examples" / "skypilot"
# The script reads the given files, and queries no cloud.
READ = """
import json, sys
import sky
tasks = [sky.Task.from_yaml(path) for path in sys.argv[1:]]
print(json.dumps([[task.num_nodes, str(task.run), [str(one.cloud) for one in task.resources]] for task in tasks]))
"""


def _plan(*options: str) -> str:
    argv = [sys.executable, "-W", "error", "getting_started.py", *options, "--plan"]
    return subprocess.run(argv, cwd=EXAMPLE, check=True, capture_output=True, text=True).stdout


def test_plan_of_the_example() -> None:
    plan = _plan("--hosts", "3", "--accelerators", "H100:1")
    assert "num_nodes: 3\n" in plan and "docker:pytorch/pytorch:2.9.1-cuda12.8-cudnn9-runtime" in plan and "--idle-timeout 600" in plan


@pytest.mark.timeout(90)  # SkyPilot takes seconds to import
def test_tasks_of_the_example_are_tasks_to_skypilot(tmp_path: Path) -> None:
    python = side_venv.existing("skypilot")
    if python is None:
        pytest.skip("python -m tools.side_venv skypilot")
    (tmp_path / "plan.yaml").write_text(_plan())
    argv = [str(python), "-c", READ, str(EXAMPLE / "getting_started.sky.yaml"), str(tmp_path / "plan.yaml")]
    done = subprocess.run(
        argv, cwd=EXAMPLE, check=False, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    )
    assert done.returncode == 0, done.stderr
    client, workers = json.loads(done.stdout.splitlines()[-1])
    assert (client[0], workers[0]) == (1, 2) and client[2] == workers[2] == ["Kubernetes"]
    assert client[1].splitlines() == [
        "export MONARCH_SKYPILOT_PYTHON=~/skypilot/bin/python",
        "~/monarch/bin/python getting_started.py --infra kubernetes --hosts 2",
    ]
