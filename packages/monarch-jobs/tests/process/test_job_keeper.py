"""The keeper of a job: one process, which outlives the script, is found by the next one, and ends with the job."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from command import monarch
from eventually import eventually
from file_job import FileJob
from kept_lamp import install

from monarch.job import JobError, Keeper, KeeperError, ProcessJob, job_load, keeper_of
from tools.bare_interpreter import run_bare
from tools.frozen import freeze
from tools.thread_signals import signal_beside_main_thread

HERE = Path(__file__).parents[1]
SCRIPT = """
import json, sys
from file_job import FileJob
from monarch.job import add_feature
job = FileJob("alloc")
add_feature(job, "lamp", path=sys.argv[1])
print(json.dumps(job.state().lamp))
"""


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = install(tmp_path / "site")
    monkeypatch.syspath_prepend(path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (path, str(HERE), os.environ.get("PYTHONPATH", "")))))


def await_end(pid: int) -> None:
    """Returns when a process is over, which may be no child of this one."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    with open(descriptor, "rb") as f:
        assert select.select([f], [], [], 25.0)[0], f"pid {pid} does not end"


def run_script(path: Path) -> dict[str, int]:
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(path)], capture_output=True, text=True, timeout=28, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout)
    return found


def test_keeper_serves_the_next_script(tmp_path: Path) -> None:
    lamp = tmp_path / "lamp"
    Path("specs.py").write_text('from file_job import FileJob\njob = FileJob("alloc")\n')
    assert monarch("apply", "specs.job")[0] == 0
    first = run_script(lamp)
    assert first["starts"] == 1
    os.kill(first["pid"], 0)
    assert run_script(lamp) == {"pid": first["pid"], "starts": 2}
    job = job_load()
    status = keeper_of(job).status()
    assert status is not None and status.pid == first["pid"]
    assert [(one.service, one.key, one.state, one.detail) for one in status.services] == [("lamp", str(lamp), "running", {"starts": 2})]
    code, out, _ = monarch("status", "--json")
    assert (code, json.loads(out)["keeper"]["pid"]) == (0, first["pid"])
    assert f"  lamp {lamp}: running\n" in monarch("status")[1]
    assert f"serve lamp {lamp}\n" in monarch("logs", "--keeper")[1]
    home = Path(Keeper(job.apply_id or "").log).parent
    assert monarch("kill")[0] == 0
    await_end(first["pid"])
    assert lamp.read_text().splitlines()[-1] == "off"
    assert not home.parent.exists()


def test_keeper_has_the_modules_of_its_client(tmp_path: Path) -> None:
    lamp = tmp_path / "lamp"
    assert json.loads(run_bare(SCRIPT + "job.kill()\n", str(lamp)))["starts"] == 1
    assert lamp.read_text().splitlines() == ["on 1 hosts", "off"]


def test_context_of_job_with_keeper_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("specs.py").write_text('from file_job import FileJob\njob = FileJob("alloc")\n')
    passphrase = tmp_path / "passphrase"
    passphrase.touch(0o600)
    passphrase.write_text("correct horse\n")
    sealed, options = str(tmp_path / "x.sealed"), ("--passphrase-file", str(passphrase))
    assert monarch("apply", "specs.job")[0] == 0
    pid = run_script(tmp_path / "lamp")["pid"]
    assert monarch("context", "export", "-o", sealed, *options) == (0, "", "")
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("MONARCH_HOME", str(tmp_path / "home of another machine"))
        assert monarch("context", "import", sealed, "--name", "moved", *options) == (0, "", "")
        code, out, _ = monarch("status", "--json")
        # The keeper runs on the machine that started it.
        assert (code, json.loads(out)["keeper"]) == (0, None)
    assert monarch("context", "use", "default")[0] == 0
    assert monarch("kill")[0] == 0
    await_end(pid)


def test_killed_keeper_is_started_again(tmp_path: Path) -> None:
    Path("specs.py").write_text('from file_job import FileJob\njob = FileJob("alloc")\n')
    assert monarch("apply", "specs.job")[0] == 0
    first = run_script(tmp_path / "lamp")
    os.kill(first["pid"], signal.SIGKILL)
    await_end(first["pid"])
    keeper = keeper_of(job_load())
    assert keeper.status() is None and keeper.stop("lamp", "x") is False
    second = run_script(tmp_path / "lamp")
    # The keeper starts the services of the previous one, and the script refreshes them.
    assert second["starts"] == 2 and second["pid"] != first["pid"]
    assert monarch("kill")[0] == 0
    await_end(second["pid"])


def test_services_of_a_killed_keeper_are_started_again(tmp_path: Path) -> None:
    job = FileJob("alloc")
    job.state(None)
    keeper = keeper_of(job)
    lamps = [tmp_path / f"lamp{number}" for number in range(2)]
    pid = [keeper.serve("lamp", lamp.name, {"path": str(lamp)})["pid"] for lamp in lamps][0]
    os.kill(pid, signal.SIGKILL)
    await_end(pid)
    try:
        # No process runs it any more, and the next keeper does not start it.
        assert keeper.stop("lamp", "lamp1") is False
        assert keeper.status() is None
        keeper.restore()
        assert keeper.stop("lamp", "lamp0") is True
        assert lamps[0].read_text().splitlines() == ["on 1 hosts", "on 1 hosts", "off"]
        assert lamps[1].read_text().splitlines() == ["on 1 hosts"]
        status = keeper.status()
        assert status is not None and status.services == []
    finally:
        job.kill()


def test_clients_at_once_start_one_keeper(tmp_path: Path) -> None:
    job = FileJob("alloc")
    job.state(None)
    pids: list[int] = []
    keeper = keeper_of(job)

    def ask(number: int) -> None:
        pids.append(keeper.serve("lamp", str(number), {"path": str(tmp_path / f"lamp{number}")})["pid"])

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(pids) == 8 and len(set(pids)) == 1
    job.kill()
    await_end(pids[0])


def test_errors_of_a_service(tmp_path: Path) -> None:
    job = FileJob("alloc")
    job.state(None)
    keeper = keeper_of(job)
    try:
        with pytest.raises(KeeperError, match="^the bulb is broken$") as caught:
            keeper.serve("lamp", "a", {"fail": True})
        assert caught.value.raised == "ValueError"
        with pytest.raises(KeeperError, match="no service 'nothing' is installed"):
            keeper.serve("nothing", "a", {})
        with pytest.raises(KeeperError, match="service 'odd' of lamp 1.0"):
            keeper.serve("odd", "a", {})
        status = keeper.status()
        assert status is not None and status.services == []
        # Another configuration replaces the service.
        lamp = tmp_path / "lamp"
        assert keeper.serve("lamp", "a", {"path": str(lamp)})["starts"] == 1
        assert keeper.serve("lamp", "a", {"path": str(lamp), "busy": False})["starts"] == 1
        assert lamp.read_text().splitlines() == ["on 1 hosts", "off", "on 1 hosts"]
        assert keeper.stop("lamp", "a") is True
        assert keeper.stop("lamp", "a") is False
    finally:
        job.kill()


def test_class_in_the_script_itself_is_named(tmp_path: Path) -> None:
    class Local(FileJob):
        pass

    Local.__module__ = "__main__"
    job = Local("alloc")
    job.state(None)
    with pytest.raises(JobError, match="Local is in the script itself"):
        keeper_of(job).serve("lamp", "a", {"path": str(tmp_path / "lamp")})
    job.kill()


def test_keeper_ends_when_all_hosts_are_gone(tmp_path: Path) -> None:
    job = ProcessJob({"a": 1, "b": 1})
    state = job.state()
    lamp = tmp_path / "lamp"
    pid = keeper_of(job).serve("lamp", "x", {"path": str(lamp)})["pid"]
    for name in state:
        state[name].initialized.get()
    for host in job.status().hosts:
        os.killpg(int(host.name.removeprefix("pid ")), signal.SIGKILL)
    await_end(pid)
    assert lamp.read_text().splitlines() == ["on 1 a b", "off"]
    job.kill()


def test_frozen_keeper_does_not_keep_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from monarch.job._client import keeper as module

    job = FileJob("alloc")
    job.state(None)
    pid = keeper_of(job).serve("lamp", "x", {"path": str(tmp_path / "lamp")})["pid"]
    freeze(pid)
    monkeypatch.setattr(module, "_END_SECONDS", 0.5)
    monkeypatch.setattr(module, "_GREETING_SECONDS", 0.5)
    job.kill()
    await_end(pid)
    assert not job.active


def test_keeper_ends_whichever_thread_gets_the_signal(tmp_path: Path) -> None:
    job = FileJob("alloc")
    job.state(None)
    keeper = keeper_of(job)
    pid = keeper.serve("lamp", "x", {"path": str(tmp_path / "lamp")})["pid"]
    signal_beside_main_thread(pid, signal.SIGTERM)
    await_end(pid)
    assert " ends: SIGTERM\n" in Path(keeper.log).read_text()
    job.kill()


def test_job_without_a_keeper() -> None:
    job = FileJob("alloc")
    with pytest.raises(JobError, match="has no allocation, so it has no keeper"):
        keeper_of(job)
    job.state(None)
    assert keeper_of(job).status() is None
    assert keeper_of(job).stop("lamp", "x") is False
    job.kill()


def worker(job: ProcessJob, mesh: str) -> int:
    return next(int(host.name.removeprefix("pid ")) for host in job.status().hosts if host.mesh == mesh)


def await_loss(keeper: Keeper) -> None:
    """Returns when the keeper has lost a host, which its log has."""
    eventually("the keeper loses the host", lambda: "silent for" in Path(keeper.log).read_text(), seconds=20.0)


def test_keeper_restarts_services_of_a_silent_host(tmp_path: Path) -> None:
    job = ProcessJob({"a": 1, "b": 1})
    lamps = [tmp_path / "lamp0", tmp_path / "lamp1"]
    try:
        job.apply()
        keeper = keeper_of(job)
        first = [keeper.serve("lamp", lamp.name, {"path": str(lamp), "procs": True})["pid"] for lamp in lamps][0]
        freeze(worker(job, "b"))
        await_loss(keeper)
        os.kill(worker(job, "b"), signal.SIGCONT)
        second = keeper.serve("lamp", "lamp0", {"path": str(lamps[0]), "procs": True})["pid"]
        assert second != first
        # The services are not stopped, they are started by the keeper that follows; the request refreshes one of them.
        assert lamps[0].read_text().splitlines() == ["on 1 a b", "on 1 a b", "on 2 a b"]
        assert keeper.serve("lamp", "lamp1", {"path": str(lamps[1]), "procs": True}) == {"pid": second, "starts": 2}
        await_end(first)
    finally:
        job.kill()


def test_silent_host_is_named_and_the_keeper_stays(tmp_path: Path) -> None:
    job = ProcessJob({"a": 1, "b": 1})
    lamp = {"path": str(tmp_path / "lamp")}
    try:
        job.apply()
        keeper = keeper_of(job)
        first = keeper.serve("lamp", "x", {**lamp, "procs": True})["pid"]
        frozen = worker(job, "b")
        freeze(frozen)
        await_loss(keeper)
        with pytest.raises(KeeperError) as caught:
            keeper.serve("lamp", "x", {**lamp, "procs": True})
        lines = str(caught.value).splitlines()
        assert lines[-2].startswith(f"  host b[0] (pid {frozen}) is lost: silent for ")
        assert lines[-1] == "hint: a worker runs and does not answer: end it, then `monarch heal` (job.heal()) starts another"
        # A service that works without the host continues.
        assert keeper.serve("lamp", "y", lamp)["pid"] == first
        os.kill(frozen, signal.SIGKILL)
        eventually("the worker is over", lambda: job.status().hosts[1].phase == "lost")
        with pytest.raises(KeeperError, match=r"\n  host b\[0\] .*\nhint: `monarch heal` \(job.heal\(\)\) starts it again$"):
            keeper.serve("lamp", "x", {**lamp, "procs": True})
    finally:
        job.kill()


def test_heal_restarts_services_on_returned_hosts(tmp_path: Path) -> None:
    job = ProcessJob({"a": 1, "b": 1})
    lamp = tmp_path / "lamp"
    try:
        job.state()
        pid = keeper_of(job).serve("lamp", "x", {"path": str(lamp), "procs": True})["pid"]
        job.heal()
        os.killpg(worker(job, "b"), signal.SIGKILL)
        eventually("the worker is over", lambda: job.status().hosts[1].phase == "lost")
        assert [host.mesh for host in job.heal().replaced] == ["b"]
        eventually("the service is started again", lambda: lamp.read_text().splitlines() == ["on 1 a b", "on 2 a b"], seconds=20.0)
        status = keeper_of(job).status()
        assert status is not None and status.pid == pid
        # Nothing has changed since.
        job.heal()
        assert keeper_of(job).serve("lamp", "x", {"path": str(lamp), "procs": True})["starts"] == 3
    finally:
        job.kill()
