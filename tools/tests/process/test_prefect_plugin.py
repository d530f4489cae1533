"""The plug-in for Prefect, built, unpacked beside the real Prefect, and used by flows against a server."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tools import side_venv
from tools.project import ROOT

sys.path.append(str(ROOT / "packages" / "monarch-core" / "tests" / "process"))
from eventually import eventually
from plugin_site import unpack_wheel

pytestmark = pytest.mark.timeout(240)  # each program imports Prefect
PLUGIN = ROOT / "plugins" / "prefect-monarch"
FLOW = """
import logging
import os
import signal
import sys
import time
from prefect import flow
from prefect_monarch import JobHosts
from monarch.actor import ActorError, current_rank
from monarch.job import ProcessJob

hosts = JobHosts(ProcessJob({"trainers": 2}))


@hosts.task(per_host={"gpus": 1}, retries=1)
def scaled(factor):
    print("factor", factor)
    logging.getLogger("user").warning("careful")
    return current_rank().rank * factor


@hosts.task(retries=1)
def killed_once(folder):
    mark = os.path.join(folder, "mark")
    if current_rank().rank == 1 and not os.path.exists(mark):
        open(mark, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return current_rank().rank


@hosts.task(retries=3)
def broken(folder):
    with open(os.path.join(folder, f"calls.{current_rank().rank}"), "a") as f:
        f.write("called\\n")
    raise ValueError("no data")


@hosts.task()
def wait(folder):
    path = os.path.join(folder, f"pid.{current_rank().rank}")
    with open(path + ".new", "w") as f:
        f.write(str(os.getpid()))
    os.rename(path + ".new", path)
    signal.pause()


@flow
def pipeline(folder: str):
    with hosts:
        print(scaled(10), killed_once(folder))
        try:
            broken(folder)
        except ActorError as e:
            print(e)


@flow
def waiting(folder: str):
    with hosts:
        wait(folder)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        waiting.serve(name="served")
    else:
        pipeline(sys.argv[2])
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the plug-in, unpacked."""
    return unpack_wheel(PLUGIN, tmp_path_factory.mktemp("site"))


class Prefect:
    """Programs that use a server of Prefect at a port of this machine."""

    def __init__(self, site: Path, python: Path, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.folder = folder
        self.api = f"http://127.0.0.1:{self.port}/api"
        self.env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(site), str(side_venv.site_packages(python)), os.environ.get("PYTHONPATH", "")]),
            "PREFECT_API_URL": self.api,
            "PREFECT_HOME": str(folder / "prefect"),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        }
        (folder / "program.py").write_text(FLOW)

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, *words], cwd=self.folder, env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, *words], cwd=self.folder, env=self.env, capture_output=True, text=True, check=False)

    def answers(self) -> bool:
        try:
            return urllib.request.urlopen(f"{self.api}/health").read() == b"true"
        except OSError:
            return False

    def found(self, what: str, **body: Any) -> Any:
        """The answer of a filter of the interface."""
        request = urllib.request.Request(f"{self.api}/{what}/filter", json.dumps(body).encode(), {"Content-Type": "application/json"})
        return json.load(urllib.request.urlopen(request))


@pytest.fixture(scope="module")
def prefect(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prefect]:
    python = side_venv.existing("prefect")
    if python is None:
        pytest.skip("python -m tools.side_venv prefect")
    found = Prefect(site, python, tmp_path_factory.mktemp("prefect"))
    with found.start("-m", "prefect", "server", "start", "--port", str(found.port)) as server:
        try:
            eventually("the server answers", found.answers, seconds=120)
            yield found
        finally:
            server.terminate()


def is_over(pids: list[int]) -> Callable[[], bool]:
    return lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_flow_runs_on_hosts_and_retries_lost_processes(prefect: Prefect, tmp_path: Path) -> None:
    done = prefect.run("program.py", "run", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "[0, 10] [0, 1]\n" in done.stdout and "ValueError: no data" in done.stdout
    # The error of the function is not repeated.
    assert [(tmp_path / f"calls.{rank}").read_text() for rank in range(2)] == ["called\n"] * 2

    def lines() -> set[str]:
        return {line["message"] for line in prefect.found("logs") if line["task_run_id"] is not None}

    wanted = {"[0] factor 10", "[1] factor 10"}
    eventually("the lines of the function are in the log of the task", lambda: wanted <= lines(), seconds=60)
    assert len([line for line in lines() if line.endswith("careful")]) == 2


def test_cancelled_flow_ends_its_job(prefect: Prefect, tmp_path: Path) -> None:
    served = prefect.start("program.py", "serve")
    try:
        eventually("the flow is served", lambda: bool(prefect.found("deployments")), seconds=120)
        started = prefect.run("-m", "prefect", "deployment", "run", "waiting/served", "-p", f"folder={tmp_path}")
        assert started.returncode == 0, started.stderr
        paths = [tmp_path / f"pid.{rank}" for rank in range(2)]
        eventually("both processes run", lambda: all(path.exists() for path in paths), seconds=120)
        pids = [int(path.read_text()) for path in paths]
        (run,) = [one for one in prefect.found("flow_runs") if one["deployment_id"] is not None]
        cancelled = prefect.run("-m", "prefect", "flow-run", "cancel", run["id"])
        assert cancelled.returncode == 0, cancelled.stderr
        eventually("the processes have ended", is_over(pids), seconds=120)
    finally:
        served.send_signal(signal.SIGKILL)
        served.wait()
