"""SlurmJob on a real cluster: jobs that queue, run, are cancelled, time out, lose a worker or a node, run out of memory.

The workers are stand-ins, so that what is tested is the scheduler's part: `test_slurm_hosts.py` has real ones.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from eventually import eventually
from slurm_jobs import NODE, Jobs

from monarch.job import JobEndedError, JoinTimeoutError, SlurmJob, SubmitError, job_load
from tools.slurm.cluster import SlurmCluster, missing, without_cgroups


def _places(jobs: Jobs, job: object) -> list[tuple[str, str]]:
    return [(host.mesh, host.name) for host in jobs.joined(job).hosts]


def test_nodes_go_to_meshes_in_order(jobs: Jobs) -> None:
    job = jobs({"b": 1, "a": 2})
    assert job.status().phase == "none"
    job.apply()
    assert _places(jobs, job) == [("b", "n0"), ("a", "n1"), ("a", "n2")]
    files = {path.name for path in jobs.folder.rglob("*")}
    assert "secret" not in files and {"0.json", "1.json", "2.json"} <= files
    assert [Path(log.path).read_text().splitlines() for log in job._logs()[1:]] == [[f"worker on n{rank}"] for rank in range(3)]


def test_killed_job_is_cancelled_and_cleaned_up(jobs: Jobs) -> None:
    job = jobs({"a": 2})
    job.apply()
    jobs.joined(job)
    job_id = job._ids["job_id"]
    job.kill()
    job.kill()
    assert not job.active and job.status().phase == "none"
    assert "CANCELLED" in jobs.cluster.run("squeue", "-h", "-t", "all", "-j", job_id, "-o", "%T")
    assert sorted(path.suffix for path in jobs.folder.iterdir()) == [".out"] * 3
    assert not list(Path(os.environ["MONARCH_HOME"]).rglob("secret"))


def test_queued_job_has_no_join_timeout(jobs: Jobs) -> None:
    """No clock runs until the nodes are there."""
    first, second = jobs({"a": 3}), jobs({"a": 2}, join_timeout=20)
    first.apply()
    jobs.joined(first)
    second.apply()
    status = jobs.until(second, lambda status: "Resources" in status.detail)
    assert status.phase == "pending" and [host.name for host in status.hosts] == ["", ""]
    first.kill()
    jobs.joined(second)


def test_job_that_does_not_start_is_cancelled(jobs: Jobs) -> None:
    first, second = jobs({"a": 3}), jobs({"a": 1}, job_start_timeout=1)
    first.apply()
    jobs.joined(first)
    second.apply()
    with pytest.raises(JoinTimeoutError, match=r"did not start within 1 s \(job_start_timeout\) and was cancelled: PENDING"):
        jobs.until(second, lambda status: status.phase != "pending")
    assert jobs.cluster.run("squeue", "-h", "-o", "%T").split() == ["RUNNING"]


def test_refused_job_is_a_submit_error(jobs: Jobs) -> None:
    job = jobs({"a": 1}, partition="nowhere")
    with pytest.raises(SubmitError, match="invalid partition specified: nowhere") as caught:
        job.apply()
    assert caught.value.exit_code == 1 and (caught.value.command or "").startswith("sbatch")
    assert not job.active and jobs.cluster.run("squeue", "-h") == ""


def test_another_process_goes_on_with_it(jobs: Jobs) -> None:
    job = jobs({"a": 1})
    job.apply()
    jobs.joined(job)
    job.dump("state.json")
    again = job_load("state.json")
    assert [host.name for host in jobs.joined(again).hosts] == ["n0"] and again.can_run(job)
    assert job._secret().hex() not in Path("state.json").read_text()
    again.kill()
    assert job.status().phase == "ended"


def test_two_jobs_on_one_node(jobs: Jobs) -> None:
    """Each takes the next free port, and knows its own."""
    pair = [jobs({"a": 1}, exclusive=False, mem="100M", slurm_args=["--nodelist=n1"]) for _ in range(2)]
    for job in pair:
        job.apply()
    first, second = (jobs.joined(job).hosts[0] for job in pair)
    assert first.name == second.name == "n1" and first.address != second.address


def test_part_of_a_node(jobs: Jobs) -> None:
    job = jobs({"a": 1})
    job.share_node(1, 1, "main")
    job.apply()
    jobs.joined(job)
    shown = jobs.cluster.run("scontrol", "show", "job", "-d", "-o", job._ids["job_id"])
    assert "mem=1000M" in shown and "gpu" in shown and "OverSubscribe=NO" not in shown


def test_heterogeneous_job_runs_and_heals(jobs: Jobs) -> None:
    job = jobs({"big": 2, "small": 1}, exclusive=False, mesh_args={"big": ["--mem=500M"], "small": ["--mem=100M", "--gpus-per-node=1"]})
    job.apply()
    status = jobs.joined(job)
    assert [host.mesh for host in status.hosts] == ["big", "big", "small"]
    jobs.tell(status.hosts[2].address, "5")
    jobs.until(job, lambda status: status.hosts[2].phase == "lost")
    assert job._launcher().relaunch(job._ids, [("small", 0)]) == [("small", 0)]
    assert jobs.joined(job).hosts[2].name == status.hosts[2].name
    job.kill()
    # Nodes are being cleaned for a moment.
    eventually("an empty queue", lambda: jobs.cluster.run("squeue", "-h"), lambda text: text == "")


def test_fewer_nodes_than_asked_for(jobs: Jobs) -> None:
    first, job = jobs({"a": 1}), jobs({"a": 1, "b": 3}, min_nodes=2, slurm_args=["--nodes=2-3"])
    first.apply()
    jobs.joined(first)
    job.apply()
    job._launcher().settle(job._ids)
    assert job._sizes() == {"a": 1, "b": 1}
    jobs.joined(job)


def test_job_without_interpreter_ends_with_its_error(jobs: Jobs) -> None:
    """The first sign of a wrong interpreter is the end of the job, with its own words."""
    job = jobs({"a": 2}, python_exe="/nowhere/python")
    job.apply()
    status = jobs.until(job, lambda status: status.phase == "ended")
    assert status.detail.startswith("FAILED")
    assert "exit code 127" in status.detail and "/nowhere/python: No such file" in status.detail


def test_workers_that_all_end_well(jobs: Jobs) -> None:
    job = jobs({"a": 2})
    job.apply()
    for host in jobs.joined(job).hosts:
        jobs.tell(host.address, "0")
    assert jobs.until(job, lambda status: status.phase == "ended").detail.startswith("COMPLETED, exit code 0")


def test_ended_worker_is_started_again(jobs: Jobs) -> None:
    job = jobs({"a": 2}, spares=1)
    job.apply()
    before = jobs.joined(job)
    jobs.tell(before.hosts[1].address, "3")
    status = jobs.until(job, lambda status: status.hosts[1].phase == "lost")
    assert status.hosts[1].detail == "its worker ended with exit code 3"
    report = job.heal()
    assert [(host.rank, host.name) for host in report.restarted] == [(1, "n1")] and not report.replaced and not report.missing
    assert jobs.joined(job).hosts[0] == before.hosts[0]


def test_last_worker_is_started_again(jobs: Jobs) -> None:
    """The allocation waits for a while."""
    job = jobs({"a": 1})
    job.apply()
    jobs.tell(jobs.joined(job).hosts[0].address, "3")
    jobs.until(job, lambda status: status.hosts[0].phase == "lost")
    assert [host.name for host in job.heal().restarted] == ["n0"]


def test_spare_replaces_a_lost_node(mortal: Jobs) -> None:
    job = mortal({"a": 2}, spares=1)
    job.apply()
    mortal.joined(job)
    mortal.cluster.kill_node(1)
    status = mortal.until(job, lambda status: status.hosts[1].phase == "lost")
    assert (status.phase, status.hosts[1].detail) == ("running", "SLURM says that the node does not answer")
    report = job.heal()
    assert [(host.mesh, host.rank, host.name) for host in report.replaced] == [("a", 1, "n2")] and not report.restarted
    assert [host.name for host in mortal.joined(job).hosts] == ["n0", "n2"]


def test_lost_node_without_a_spare_is_missing(mortal: Jobs) -> None:
    job = mortal({"a": 3})
    job.apply()
    mortal.joined(job)
    mortal.cluster.kill_node(2)
    mortal.until(job, lambda status: status.hosts[2].phase == "lost")
    report = job.heal()
    assert [(host.rank, host.name) for host in report.missing] == [(2, "n2")] and job.status().phase == "running"


def test_loss_of_the_scripts_node_uses_a_spare(mortal: Jobs) -> None:
    """Nothing can be started there any more; the other workers go on, and spares can be used."""
    job = mortal({"a": 2}, spares=1)
    job.apply()
    mortal.joined(job)
    mortal.cluster.kill_node(0)
    mortal.until(job, lambda status: status.hosts[0].phase == "lost")
    assert [host.name for host in job.heal().replaced] == ["n2"]
    assert job._launcher().relaunch(job._ids, [("a", 1)]) == []


def test_preempted_job_runs_again(jobs: Jobs) -> None:
    """What its first run published does not count."""
    low = jobs({"a": 3}, partition="low", requeue=True)
    low.apply()
    jobs.joined(low)
    high = jobs({"a": 3}, partition="main")
    high.apply()
    status = jobs.until(low, lambda status: status.phase == "pending")
    assert [host.phase for host in status.hosts] == ["waiting"] * 3
    jobs.joined(high)
    high.kill()
    jobs.start_again(low)
    jobs.joined(low)
    assert (jobs.folder / low._ids["job_id"] / "restarts").read_text() == "1\n"


def test_requeued_job_after_its_scripts_end_runs_again(jobs: Jobs) -> None:
    """As in a preemption that reaches the script after its workers have ended: each run needs the secret."""
    job = jobs({"a": 2}, requeue=True)
    job.apply()
    for host in jobs.joined(job).hosts:
        jobs.tell(host.address, "0")
    jobs.until(job, lambda status: status.phase == "ended")
    jobs.cluster.run("scontrol", "requeue", job._ids["job_id"])
    jobs.until(job, lambda status: status.phase == "pending")
    jobs.start_again(job)
    jobs.joined(job)


def test_script_inside_the_allocation_decides_the_exit_code(jobs: Jobs, python_exe: str, tmp_path: Path) -> None:
    """The job ends with it and has its exit code."""
    script = tmp_path / "client.sh"
    script.write_text('echo "$MONARCH_BATCH_JOB $MONARCH_BATCH_JOB_FILE on $SLURMD_NODENAME"; exit 9\n')
    # The interpreter is a worker, or runs a script.
    Path(python_exe).write_text(Path(python_exe).read_text().replace("exec", '[ "$1" = -c ] || exec /bin/sh "$@"; exec'))
    job = jobs({"a": 2})
    job.apply(client_script=str(script))
    job_id = job._ids["job_id"]
    status = jobs.until(job, lambda status: status.phase == "ended")
    assert status.detail.startswith("FAILED (NonZeroExitCode), exit code 9")
    assert f"1 {jobs.folder}/{job_id}/job.json on n0" in status.detail
    with pytest.raises(SubmitError, match="no such script"):
        jobs({"a": 2}).apply(client_script="nowhere.py")


def test_job_without_its_client_ends(jobs: Jobs) -> None:
    """No client brings the secret: the job ends by itself."""
    job = jobs({"a": 1})
    text = job.plan().text.replace("left = 60 * 10", "left = 1 * 10")
    jobs.folder.mkdir()
    job_id = jobs.cluster.run("sbatch", "--parsable", stdin=text).strip()
    job._ids = job._launcher()._new_ids(job_id, None, str(jobs.folder))
    job.__core__.active = True
    status = jobs.until(job, lambda status: status.phase == "ended")
    assert status.detail.startswith("FAILED") and "exit code 75" in status.detail and "its client is gone" in status.detail


@pytest.mark.skipif(bool(without_cgroups()), reason=without_cgroups())
def test_out_of_memory(monkeypatch: pytest.MonkeyPatch, python_exe: str, tmp_path: Path) -> None:
    """The kernel kills the worker, and it is started again."""
    if lacking := missing():
        pytest.skip(lacking)
    monkeypatch.setenv("MONARCH_HOME", str(tmp_path / "home"))
    with SlurmCluster(tmp_path / "slurm", [NODE], cgroups=True, prefix=f"m{os.getpid()}n") as cluster:
        monkeypatch.setenv("SLURM_CONF", cluster.env["SLURM_CONF"])
        jobs = Jobs(cluster, python_exe, tmp_path / "jobs")
        job = jobs({"a": 1}, exclusive=False, mem="100M")
        job.apply()
        jobs.tell(jobs.joined(job).hosts[0].address, "grow 300")
        status = jobs.until(job, lambda status: status.hosts[0].phase == "lost")
        assert status.hosts[0].detail == "its worker ended with exit code 137"
        assert len(job.heal().restarted) == 1
        job.kill()
        assert "oom-kill event" in jobs.outputs() or "Out Of Memory" in jobs.outputs()


@pytest.mark.timeout(150)  # a minute and a half, if this is the only test that runs
def test_time_limit_ends_the_job(expiring: tuple[SlurmCluster, str], monkeypatch: pytest.MonkeyPatch) -> None:
    if lacking := missing():
        pytest.skip(lacking)
    cluster, folder = expiring
    monkeypatch.setenv("SLURM_CONF", cluster.env["SLURM_CONF"])
    monkeypatch.setenv("MONARCH_HOME", f"{folder}/home")
    jobs = Jobs(cluster, "", Path(folder) / "jobs")
    job = job_load(f"{folder}/state.json")
    assert isinstance(job, SlurmJob)
    # SLURM's own check of the limits is due twice a minute.
    status = jobs.until(job, lambda status: status.phase == "ended", seconds=110.0)
    assert "TIMEOUT (TimeLimit)" in status.detail and "DUE TO TIME LIMIT" in status.detail
    with pytest.raises(JobEndedError, match="ended: TIMEOUT") as caught:
        job.heal()
    assert (caught.value.state, caught.value.reason) == ("TIMEOUT", "TimeLimit")
    job.kill()
