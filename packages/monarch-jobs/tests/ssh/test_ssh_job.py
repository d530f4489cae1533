"""SSHJob with real sshds and real workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from eventually import eventually

from monarch.actor import Actor, SupervisionError, endpoint
from monarch.job import JobError, JobStatus, SSHJob, SubmitError, job_load
from tools.external_process import use_hosts
from tools.sshd.hosts import SshHosts


class Echo(Actor):
    @endpoint
    def say(self, word: str) -> None:
        print(word, flush=True)

    @endpoint
    def parent(self) -> int:
        return os.getppid()


def _job(hosts: SshHosts, **arguments: object) -> SSHJob:
    arguments = {"python_exe": sys.executable, "ssh_args": hosts.ssh_args, **arguments}
    job = SSHJob(**arguments)  # pyright: ignore[reportArgumentType]
    job.add_mesh("workers", hosts.names)
    return job


def _until(job: SSHJob, phases: list[str]) -> JobStatus:
    return eventually(f"phases {phases}", job.status, lambda status: [host.phase for host in status.hosts] == phases)


def _left(hosts: SshHosts, tmp_path: Path) -> list[str]:
    return [path.name for path in tmp_path.glob("monarch-worker-*")]


def _wait_until_no_connection_is_kept() -> None:
    """A master acknowledges its end before it removes its socket."""
    folder = os.path.join(tempfile.gettempdir(), f"monarch-ssh-{os.geteuid()}")
    eventually("no connection is kept", lambda: os.listdir(folder), lambda names: not names)


def test_hosts_join_run_and_end(hosts: SshHosts, tmp_path: Path) -> None:
    job = _job(hosts)
    state = job.state(cached_path="state.json")
    assert state.workers.spawn_procs({"procs": 2}).spawn("echo", Echo).parent.call().get(20).extent.nelements == 4
    assert [host.name for host in job.status().hosts] == ["h0", "h1"]
    assert not list(tmp_path.glob("monarch-worker-*/secret")), "what carried the secret is gone"
    assert job._secret().hex() not in Path("state.json").read_text()
    again = job_load("state.json")
    assert again.can_run(_job(hosts)) and not again.can_run(_job(hosts, monarch_port=9))
    job.kill()
    assert not _left(hosts, tmp_path) and not Path("state.json").exists()


def test_external_processes_use_the_hosts(hosts: SshHosts) -> None:
    job = _job(hosts)
    try:
        use_hosts(job.state(cached_path=None).workers)
    finally:
        job.kill()


def test_logs_shows_what_actors_print(hosts: SshHosts) -> None:
    job = _job(hosts)
    echo = job.state(cached_path=".monarch/job_state.json").workers.spawn_procs().spawn("echo", Echo)
    echo.say.call("hello ä").get(20)
    command = [sys.executable, "-P", "-W", "error", "-c", "from monarch.extension.cli import main; main()", "logs"]
    code, out, err = -1, "", ""
    # A line is there when the worker has read it.
    while out.count("hello ä") < 2 and code in (-1, 0):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        code, out, err = done.returncode, done.stdout, done.stderr
    assert (code, err) == (0, "")
    echo.say.call("again").get(20)
    while out.count("again") < 2:
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert out.count("hello ä") == 2
    hosts.kill_host("h1")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "monarch: no output of workers[1] on h1: " in done.stderr and done.stdout == out
    with pytest.raises(JobError):
        job.kill()


def test_ended_worker_is_started_again(hosts: SshHosts) -> None:
    job = _job(hosts)
    job.apply()
    status = _until(job, ["joined", "joined"])
    assert job._ids is not None
    subprocess.run(["ssh", *hosts.ssh_args, "h1", f"kill -KILL -{job._ids['workers'][1]['pid']}"], check=True)
    lost = _until(job, ["joined", "lost"])
    assert lost.hosts[1].detail.startswith("its worker")
    report = job.heal()
    assert [host.name for host in report.restarted] == ["h1"] and not report.missing
    assert _until(job, ["joined", "joined"]).hosts[0] == status.hosts[0]
    job.kill()


def test_all_workers_are_started_again(hosts: SshHosts) -> None:
    """Their machines are there, and so is the allocation."""
    job = _job(hosts)
    job.apply()
    _until(job, ["joined", "joined"])
    assert job._ids is not None
    for host, worker in zip(("h0", "h1"), job._ids["workers"], strict=True):
        subprocess.run(["ssh", *hosts.ssh_args, host, f"kill -KILL -{worker['pid']}"], check=True)
    _until(job, ["lost", "lost"])
    assert job.status().phase == "ended"
    report = job.heal()
    assert [host.name for host in report.restarted] == ["h0", "h1"] and not report.missing
    _until(job, ["joined", "joined"])
    job.kill()


def test_lost_host_is_missing_until_it_returns(hosts: SshHosts) -> None:
    job = _job(hosts)
    state = job.state(cached_path=None)
    echo = state.workers.spawn_procs().spawn("echo", Echo)
    echo.parent.call().get(20)
    hosts.kill_host("h1")
    with pytest.raises(SupervisionError):
        while True:
            echo.slice(hosts=1).parent.call_one().get(20)
    _until(job, ["joined", "lost"])
    assert [host.name for host in job.heal().missing] == ["h1"]
    hosts.start_host("h1")
    assert [host.name for host in job.heal().restarted] == ["h1"]
    job.kill()


@pytest.mark.parametrize(
    ("arguments", "text", "code"),
    [
        ({"python_exe": "/nowhere/python"}, "'/nowhere/python' on h0 is no interpreter with monarch\n.*not found", 3),
        ({"python_exe": "/bin/true"}, "'/bin/true' on h0 is another version\n.*this machine monarch", 4),
        ({"ssh_args": ["-F", "/dev/null"]}, "ssh does not get to h0", 255),
    ],
)
def test_unreachable_hosts_and_bad_commands_are_refused(
    hosts: SshHosts, tmp_path: Path, arguments: dict[str, object], text: str, code: int
) -> None:
    job = _job(hosts, **arguments)
    with pytest.raises(SubmitError, match=text) as caught:
        job.apply()
    assert caught.value.exit_code == code and "ssh" in (caught.value.command or "")
    assert not job.active and not _left(hosts, tmp_path)
    _wait_until_no_connection_is_kept()


def test_workers_of_one_machine_end_without_errors(hosts: SshHosts, tmp_path: Path) -> None:
    job = SSHJob(python_exe=sys.executable, ssh_args=hosts.ssh_args)
    for number in range(6):
        job.add_mesh(f"mesh{number}", ["h0"])
    job.apply()
    _until(job, ["joined"] * 6)
    job.kill()
    assert not _left(hosts, tmp_path)
    _wait_until_no_connection_is_kept()


def test_unreachable_host_ends_the_other_workers(hosts: SshHosts, tmp_path: Path) -> None:
    hosts.kill_host("h1")
    with pytest.raises(SubmitError, match="ssh does not get to h1"):
        _job(hosts).apply()
    assert not _left(hosts, tmp_path)


def test_unreachable_port_is_forwarded(hosts: SshHosts, monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind a firewall: what ssh dials is not where this machine gets to the worker's port."""
    monkeypatch.setattr("monarch.job._machine.commands.Commands.host_name", lambda _: "nowhere.invalid")
    job = _job(hosts)
    state = job.state(cached_path=None)
    assert len(state.workers.spawn_procs().spawn("echo", Echo).parent.call().get(20)) == 2
    assert job._ids is not None and all(worker["forwards"] for worker in job._ids["workers"])
    job.kill()


def test_frozen_host_costs_no_more_than_the_limits(hosts: SshHosts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without limits each command waits for a minute, which is longer than this test may take."""
    job = _job(hosts)
    job.apply()
    _until(job, ["joined", "joined"])
    hosts.freeze_host("h1")
    monkeypatch.setattr("monarch.job.ssh.LOOK_TIMEOUT_S", 2.0)
    status = _until(job, ["joined", "lost"])
    assert status.hosts[1].detail == "no end after 2 s"
    report = job.heal(timeout=4)
    assert [host.name for host in report.missing] == ["h1"] and not report.restarted
    hosts.thaw_host("h1")
    job.kill()


def _monarch(*words: str) -> subprocess.CompletedProcess[str]:
    main = "from monarch.extension.cli import main; main()"
    return subprocess.run([sys.executable, "-c", main, *words], capture_output=True, text=True, timeout=60)


@pytest.mark.timeout(90)  # five verbs in processes of their own, one of which waits for a host that is gone
def test_verbs_reach_the_hosts_of_the_current_job(hosts: SshHosts) -> None:
    job = _job(hosts)
    state = job.state()
    state.workers.spawn_procs(name="busy").spawn("echo", Echo).parent.call().get(20)
    # This client is on this machine, and reports its hosts; hosts with sshds of this machine see other jobs of it too.
    listed = json.loads(_monarch("stack", "--json").stdout)
    (mine,) = [one for one in listed if one["pid"] == os.getpid() and "on" not in one]
    # Hosts of earlier tests of this process are among them, as lost ones.
    known = [int(host["answer"]["procs"][0]["uid"], 16) for host in mine["answer"]["hosts"] if host["answer"] is not None]
    assert len(known) >= 2 and not [one for one in listed if "on" in one and one["agent"] in (mine["agent"], *known)]
    subjects = [(one.get("on", ""), one["subject"]) for one in json.loads(_monarch("doctor", "--json").stdout)]
    assert {"", "workers[0]", "workers[1]"} == {on for on, _ in subjects}
    # A host that is gone is named, and does not affect the others.
    hosts.kill_host("h1")
    done = _monarch("ps")
    assert done.returncode == 1 and "monarch: workers[1]: " in done.stderr, done
    with pytest.raises(JobError, match="workers may go on"):
        job.kill()
