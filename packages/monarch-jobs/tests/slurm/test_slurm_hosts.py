"""SlurmJob with real workers: reserve once and run many times, from several clients; nodes and workers that are lost; a login node."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from eventually import eventually
from slurm_jobs import Jobs
from worker_processes import Workers

from monarch.actor import Actor, HostMesh, SupervisionError, endpoint
from monarch.job import DEFAULT_JOB_PATH, SlurmJob, job_load
from tools.external_process import use_hosts
from tools.ports import PortBlock
from tools.project import ROOT
from tools.sshd.hosts import SshHosts
from tools.sshd.hosts import missing as missing_sshd

CLIENT = """
import json, os, sys
from monarch.actor import Actor, endpoint
from monarch.job import SlurmJob
from monarch.job._job.trait import current

class Node(Actor):
    @endpoint
    def name(self):
        return os.environ["SLURMD_NODENAME"]

if __name__ == "__main__":
    job = SlurmJob({"a": 2, "b": 1}, python_exe=sys.executable, job_dir="jobs")
    state = job.state()
    names = {mesh: list(state[mesh].spawn_procs().spawn("node", Node).name.call().get(20).values()) for mesh in ("a", "b")}
    print(json.dumps([current(job)._where(), names]))
"""


class Node(Actor):
    @endpoint
    def name(self) -> str:
        return os.environ["SLURMD_NODENAME"]


pytestmark = pytest.mark.usefixtures("sources")

LATER = """
import sys
from client import Node
from monarch.job import job_load

if __name__ == "__main__":
    hosts = job_load("state.json").state().a
    print(*hosts.spawn_procs().spawn("node", Node).name.call().get(20).values())
"""


def _names_later(folder: Path) -> list[str]:
    """What a client that comes now finds."""
    (folder / "client.py").write_text(CLIENT)
    (folder / "later.py").write_text(LATER)
    done = subprocess.run([sys.executable, "later.py"], cwd=folder, capture_output=True, text=True, timeout=25)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def _names(hosts: HostMesh) -> list[str]:
    return list(hosts.spawn_procs().spawn("node", Node).name.call().get(20).values())


def test_reserved_once_and_run_three_times(jobs: Jobs, tmp_path: Path) -> None:
    """Each run is a client of its own, which finds the allocation by the cached state; then it is killed."""
    (tmp_path / "client.py").write_text(CLIENT)
    found: list[object] = []
    for _ in range(3):
        done = subprocess.run([sys.executable, "client.py"], capture_output=True, text=True, timeout=25)
        assert (done.returncode, done.stderr) == (0, "")
        found.append(json.loads(done.stdout))
    assert found[0] == found[1] == found[2]
    assert found[0][1] == {"a": ["n0", "n1"], "b": ["n2"]}  # pyright: ignore[reportIndexIssue]
    assert jobs.cluster.run("squeue", "-h", "-o", "%T").split() == ["RUNNING"]
    killed = subprocess.run([sys.executable, "-c", "from monarch.job import job_load; job_load().kill()"], capture_output=True, text=True)
    assert (killed.returncode, killed.stderr) == (0, "")
    assert jobs.cluster.run("squeue", "-h") == "" and not Path(".monarch/job_state.json").exists()


def test_external_processes_use_the_nodes(jobs: Jobs) -> None:
    job = jobs({"a": 2}, python_exe=sys.executable)
    use_hosts(job.state(cached_path=None).a)
    job.kill()


def test_killed_worker_is_started_again(jobs: Jobs, tmp_path: Path) -> None:
    """Its procs fail, it is started again where it was, and the next state has it."""
    job = jobs({"a": 2}, python_exe=sys.executable)
    state = job.state(cached_path=str(tmp_path / "state.json"))
    nodes = state.a.spawn_procs().spawn("node", Node)
    assert list(nodes.name.call().get(20).values()) == ["n0", "n1"]
    jobs.kill_worker(job, 1)
    with pytest.raises(SupervisionError):
        while True:
            nodes.slice(hosts=1).name.call_one().get(20)
    jobs.until(job, lambda status: status.hosts[1].phase == "lost")
    assert [host.name for host in job.heal().restarted] == ["n1"]
    assert _names_later(tmp_path) == ["n0", "n1"]


def test_lost_node_is_replaced_by_a_spare(mortal: Jobs, tmp_path: Path) -> None:
    """A spare takes its place within the allocation."""
    job = mortal({"a": 2}, python_exe=sys.executable, spares=1)
    state = job.state(cached_path=str(tmp_path / "state.json"))
    nodes = state.a.spawn_procs().spawn("node", Node)
    assert list(nodes.name.call().get(20).values()) == ["n0", "n1"]
    mortal.cluster.kill_node(1)
    with pytest.raises(SupervisionError):
        while True:
            nodes.slice(hosts=1).name.call_one().get(20)
    mortal.until(job, lambda status: status.hosts[1].phase == "lost")
    assert [host.name for host in job.heal().replaced] == ["n2"]
    assert _names_later(tmp_path) == ["n0", "n2"]
    job.kill()


def test_dead_node_is_missing_without_a_wait(mortal: Jobs, capfd: pytest.CaptureFixture[str]) -> None:
    """As soon as srun or the controller has noticed; the time for joining is longer than this test may last."""
    job = mortal({"a": 2}, python_exe=sys.executable, join_timeout=3600)
    nodes = job.state(cached_path=None).a.spawn_procs().spawn("node", Node)
    assert list(nodes.name.call().get(20).values()) == ["n0", "n1"]
    mortal.cluster.kill_node(1)
    with pytest.raises(SupervisionError):
        while True:
            nodes.slice(hosts=1).name.call_one().get(20)
    report = job.heal()
    assert [(host.name, host.phase) for host in report.missing] == [("n1", "lost")] and not report.restarted
    reasons = ("SLURM says that the node does not answer", "srun could not run its worker on the node: exit code ")
    assert report.missing[0].detail.startswith(reasons)
    assert f"{job._title}: a[1] (n1) is lost: " in capfd.readouterr().err
    assert _names(job.state(cached_path=None).a.slice(hosts=slice(0, 1))) == ["n0"]
    job.kill()


ENDS = """
import os, subprocess, sys
from client import Node
from monarch.job import DEFAULT_JOB_PATH, SlurmJob, job_load

if __name__ == "__main__":
    os.environ["MONARCH_HOME"] = "another home"  # as on a node that does not share it
    job = SlurmJob({"a": 2, "b": 1})
    nodes = job.state().a.spawn_procs().spawn("node", Node)
    # A child that connects and ends is not the end of the script.
    subprocess.run([sys.executable, "client.py"], check=True, timeout=20)
    print(*nodes.name.call().get(20).values(), flush=True)
    if "kill" in sys.argv[0]:
        job.kill()
    sys.exit(int(sys.argv[0][-4]))
"""


@pytest.mark.parametrize(("name", "state"), [("exits0.py", "COMPLETED"), ("exits3.py", "FAILED"), ("kills0.py", "COMPLETED")])
def test_allocation_ends_with_exit_code_of_script(jobs: Jobs, tmp_path: Path, name: str, state: str) -> None:
    """Nothing of the credentials stays, and the state file contains how the script ended."""
    (tmp_path / "client.py").write_text(CLIENT)
    (tmp_path / name).write_text(ENDS)
    job = jobs({"a": 2, "b": 1}, python_exe=sys.executable)
    job.apply(client_script=name)
    assert job.apply_id is not None
    jobs.until(job_load(), lambda status: status.phase == "ended")
    status = job.status()
    assert status.detail.startswith(state) and f"exit code {name[-4]}" in status.detail, status.detail
    assert status.detail.splitlines()[3] == "n0 n1"
    assert not list(Path(os.environ["MONARCH_HOME"], "jobs").iterdir()) and not list(jobs.folder.rglob("secret"))
    job.kill()
    assert not os.path.exists(DEFAULT_JOB_PATH)


def test_job_after_a_successful_script_starts(jobs: Jobs, tmp_path: Path) -> None:
    """`afterok` needs the exit code 0 of a script that has used the hosts."""
    (tmp_path / "client.py").write_text(CLIENT)
    job = jobs({"a": 2, "b": 1}, python_exe=sys.executable)
    job.apply(client_script="client.py")
    assert job._ids is not None
    script = f"#!/bin/sh\necho $SLURM_JOB_ID >{tmp_path}/after\n"
    jobs.cluster.run("sbatch", f"--dependency=afterok:{job._ids['job_id']}", "--kill-on-invalid-dep=yes", "-o", "/dev/null", stdin=script)
    jobs.until(job, lambda status: status.phase == "ended")
    eventually("the queue is empty", lambda: jobs.cluster.run("squeue", "-h", "-o", "%A"), lambda queue: not queue)
    assert (tmp_path / "after").exists()


MONARCH = "from monarch.extension.cli import main; main()"


def test_commands_know_the_job_of_a_script(jobs: Jobs, tmp_path: Path) -> None:
    """`status`, `exec` and `logs` leave it running; `kill` ends it. A second one does not take its place."""
    (tmp_path / "waits.py").write_text("import signal, sys\nprint('begun', file=sys.stderr, flush=True)\nsignal.pause()\n")
    job, second = (jobs({"a": 1}, python_exe=sys.executable) for _ in range(2))
    job.apply(client_script="waits.py")
    jobs.joined(job)
    second.apply(client_script="waits.py")
    assert job._ids is not None and second._ids is not None

    def monarch(*words: str) -> str:
        done = subprocess.run([sys.executable, "-c", MONARCH, *words], capture_output=True, text=True, timeout=25)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "running" in monarch("status") and monarch("exec", "--", "echo", "here").strip() == "here"
    assert "begun" in monarch("logs", "--system") and "[system] begun" in monarch("logs").splitlines()
    assert "begun" not in monarch("logs", "--mesh", "a")
    assert job.status().phase == "running"
    monarch("kill")
    assert job.status().phase == "ended" and second.status().phase != "ended"
    assert jobs.cluster.run("squeue", "-h", "-o", "%A").split() == [second._ids["job_id"]]


def test_through_a_login_node(jobs: Jobs, tmp_path: Path, sources: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No command of SLURM here: all run there, and the ports come over the same connection."""
    if lacking := missing_sshd():
        pytest.skip(lacking)
    environment = {"PYTHONPATH": sources, **jobs.cluster.env}
    with SshHosts(tmp_path / "sshd", ("login",), env=environment) as login:
        path, bin_folder = os.environ["PATH"], tmp_path / "bin"
        bin_folder.mkdir()
        (bin_folder / "ssh").write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {login.config} "$@"\n')
        (bin_folder / "ssh").chmod(0o755)
        monkeypatch.setenv("PATH", str(bin_folder))
        monkeypatch.delenv("SLURM_CONF")
        job = SlurmJob({"a": 2}, python_exe=sys.executable, job_dir=str(tmp_path / "jobs"), via_ssh="login", out_of_cluster=True)
        state = job.state(cached_path="state.json")
        assert _names(state.a) == ["n0", "n1"]
        status = job.status()
        assert all((host.address or "").partition("@")[2].startswith("tcp://127.0.0.1:") for host in status.hosts)
        assert not list((tmp_path / "jobs").rglob("secret"))
        job.kill()
        assert not [path for path in (tmp_path / "jobs").iterdir() if path.is_dir()]
        monkeypatch.setenv("PATH", path)
        assert not (login.directory / "login.log").read_text().count("Accepted publickey") > 1, "one connection"


THROUGH_A_GATEWAY = """
import json, os, sys
from pathlib import Path
from client import Node
from monarch.job import SlurmJob

def connections():
    own = {os.readlink(fd) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()}
    fields = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    # Established, or on the way to be.
    return sorted({int(f[2].rpartition(":")[2], 16) for f in fields if f"socket:[{f[9]}]" in own and f[3] in ("01", "02")})

if __name__ == "__main__":
    gateway, port, *limits = sys.argv[1:]
    job = SlurmJob({"a": 2}, python_exe=sys.executable, job_dir="jobs", monarch_port=int(port), attach_to=gateway, slurm_args=limits)
    nodes = job.state().a.spawn_procs().spawn("node", Node)
    print(json.dumps([list(nodes.name.call().get(20).values()), connections()]))
"""


def _through(folder: Path, gateway: str, port: int, *limits: str) -> subprocess.Popen[str]:
    (folder / "client.py").write_text(CLIENT)
    (folder / "through.py").write_text(THROUGH_A_GATEWAY)
    command = [sys.executable, "through.py", gateway, str(port), *limits]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def port() -> Iterator[int]:
    """And the next one."""
    block = PortBlock(2)
    yield block.first
    block.close()


@pytest.mark.parametrize("held", [False, True])
def test_through_a_host_of_the_job(jobs: Jobs, tmp_path: Path, held: bool, port: int) -> None:
    """One port of the cluster is enough; it is waited for while the job is in the queue."""
    with _through(tmp_path, f"tcp://127.0.0.1:{port}", port, *(["--hold"] if held else [])) as client:
        if held:
            waiting = eventually("a job in the queue", lambda: jobs.cluster.run("squeue", "-h", "-o", "%A %T").split())
            assert waiting[1] == "PENDING"
            jobs.cluster.run("scontrol", "release", waiting[0])
        out, err = client.communicate(timeout=25)
    assert (client.returncode, err) == (0, "")
    assert json.loads(out) == [["n0", "n1"], [port]]
    job_load().kill()


def test_job_is_reached_through_a_foreign_gateway(jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    """It has a secret of its own, which this client finds by the environment; the hosts have theirs."""
    with Workers(1, "tls") as gateway:
        monkeypatch.setenv("MONARCH_JOB_SECRET_FILE", str(gateway.secret))
        (address,) = gateway.addresses
        with _through(tmp_path, address, port) as client:
            out, err = client.communicate(timeout=25)
        assert (client.returncode, err) == (0, "")
        assert json.loads(out) == [["n0", "n1"], [int(address.rpartition(":")[2])]]
        job_load().kill()


def test_gateway_with_another_secret_is_refused(jobs: Jobs, tmp_path: Path, port: int) -> None:
    with Workers(1, "tls") as gateway:
        with _through(tmp_path, gateway.addresses[0], port) as client:
            _, err = client.communicate(timeout=25)
        assert client.returncode == 1
        assert "AuthenticationError" in err and gateway.addresses[0] in err
        # The job exists, and can be used in another way.
        job_load().kill()


def test_example_runs_in_one_allocation(jobs: Jobs) -> None:
    """The same script that CI runs on processes, unchanged: three runs in one allocation, from two clients."""
    example = str(ROOT / "examples" / "slurm_job.py")
    for arguments in (["--runs", "1"], ["--runs", "2", "--quick"]):
        done = subprocess.run([sys.executable, "-W", "error", example, *arguments], capture_output=True, text=True, timeout=25)
        assert (done.returncode, done.stderr) == (0, "")
        assert "499999500000 on {hosts: 2, procs: 2}" in done.stdout
    assert len(jobs.cluster.run("squeue", "-h", "-t", "all", "-o", "%A").split()) >= 1 and jobs.cluster.run("squeue", "-h") == ""
