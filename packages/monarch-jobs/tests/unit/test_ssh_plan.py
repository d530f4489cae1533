"""Plans of ssh jobs, and what their constructor refuses. Nothing here runs ssh."""

from __future__ import annotations

from typing import Any

import pytest

from monarch.job import SSHJob, job_loads


def test_plan_has_a_command_per_host() -> None:
    job = SSHJob(python_exe="/opt/my env/python", ssh_args=["-p", "2222"], monarch_port=7)
    with pytest.raises(ValueError, match="without a mesh"):
        job.plan()
    job.add_mesh("a", ["gpu1", "ada@gpu2"])
    job.add_mesh("b", ["gpu3"])
    command = "ssh -o BatchMode=yes -p 2222"
    worker = "'/opt/my env/python' monarch worker --listen 'tcp://*:7'"
    assert str(job.plan()).splitlines() == [
        f"a[0]: {command} gpu1 {worker}",
        f"a[1]: {command} ada@gpu2 {worker}",
        f"b[0]: {command} gpu3 {worker}",
    ]
    again = job_loads(job.dumps())
    assert isinstance(again, SSHJob) and again.plan() == job.plan() and again.can_run(job)


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({"ssh_args": "-p 2222"}, TypeError, "sequence"),
        ({"python_exe": "-c"}, ValueError, "no interpreter"),
        ({"monarch_port": 0}, ValueError, "1 to 65535"),
        ({"transport": "pigeon"}, ValueError, "no transport 'pigeon'; there is tcp"),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        SSHJob(**arguments)


def test_hosts_that_would_be_options() -> None:
    with pytest.raises(ValueError, match="names no host"):
        SSHJob().add_mesh("a", ["-oProxyCommand=x"])
