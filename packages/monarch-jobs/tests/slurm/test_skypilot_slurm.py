"""SkyPilotJob with the real SkyPilot on a real SLURM: launch, calls, another process goes on, kill; and a set-up that fails."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from skypilot_site import SkyPilotSite, missing

from monarch import config
from monarch.actor import Actor, endpoint
from monarch.job import JobEndedError, SubmitError
from monarch.job.skypilot import SkyPilotJob

# The test takes two minutes on an idle machine: SkyPilot installs itself on the nodes and queries them by ssh.
pytestmark = pytest.mark.timeout(1500)
JOINED_S = 1200.0
RESOURCES = {"infra": "slurm", "cpus": 1, "memory": "1+"}

AGAIN = """
import sys
sys.path.insert(0, {folder!r})
from test_skypilot_slurm import Where
from monarch.job import job_load
job = job_load("state.json")
state = job.state(cached_path="state.json")
print(job.apply_id, state.b.spawn_procs().spawn("where", Where).place.call_one().get({seconds}))
"""


class Where(Actor):
    @endpoint
    def place(self) -> tuple[str, str, str]:
        """Rank and node, and the environment that could have the secret."""
        environment = Path(f"/proc/{os.getppid()}/environ").read_text() + Path(f"/proc/{os.getppid()}/cmdline").read_text()
        return os.environ["SKYPILOT_NODE_RANK"], os.environ["SLURMD_NODENAME"], environment


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SkyPilotSite]:
    if lacking := missing():
        pytest.skip(lacking)
    with SkyPilotSite(tmp_path_factory.mktemp("skypilot"), ["c1", "c2"]) as found:
        yield found


@pytest.fixture
def client(site: SkyPilotSite, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SkyPilotSite]:
    """This process as a client of the site, in a folder of its own."""
    for name, value in site.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MONARCH_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    with config.configured(skypilot_python=str(site.python)):
        yield site


def _left(site: SkyPilotSite) -> list[str]:
    """What there is of clusters: in SLURM's queue, and of what they put into the temporary folder of nodes."""
    found = [str(path) for path in Path("/tmp").glob(f"monarch-skypilot-{os.getuid()}/*_c[12]_*")]
    return [*site.slurm.run("squeue", "-h", "-t", "R,PD", "-o", "%j").split(), *found]


def test_life_cycle(client: SkyPilotSite) -> None:
    """Hosts join and answer, a fresh process goes on with them, and after `kill` nothing is left."""
    job = SkyPilotJob({"a": 1, "b": 1}, RESOURCES, "c1", python_exe=sys.executable, join_timeout=JOINED_S)
    state = job.state(cached_path="state.json")
    places = [state[mesh].spawn_procs().spawn("where", Where).place.call_one().get(JOINED_S) for mesh in ("a", "b")]
    assert [place[:2] for place in places] == [("0", "n0"), ("1", "n1")]
    secret = job._secret()
    told = [*(place[2] for place in places), str(job.plan()), Path("state.json").read_text()]
    assert not [text for text in told if secret.hex() in text or repr(secret)[2:-1] in text]
    assert [host.phase for host in job.status().hosts] == ["joined", "joined"]

    script = AGAIN.format(folder=str(Path(__file__).parent), seconds=JOINED_S)
    env = {**os.environ, "MONARCH_SKYPILOT_PYTHON": str(client.python), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    again = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=JOINED_S)
    assert again.returncode == 0 and again.stdout.startswith(f"{job.apply_id} ('1', 'n1'"), again.stderr

    with pytest.raises(SubmitError, match="has a cluster 'c1' already"):
        SkyPilotJob({"a": 1}, RESOURCES, "c1").apply()
    job.kill()
    assert not job.active and not Path("state.json").exists() and not _left(client)
    assert not list(Path(os.environ["MONARCH_HOME"]).rglob("secret"))


def test_failed_setup_is_reported_at_once(client: SkyPilotSite) -> None:
    job = SkyPilotJob({"a": 1}, RESOURCES, "c2", python_exe=sys.executable, setup_commands="echo no luck; exit 7", join_timeout=JOINED_S)
    state = job.state(cached_path=None)
    with pytest.raises(JobEndedError, match="(?s)ended: FAILED_SETUP.*no luck") as caught:
        state.a.initialized.get(JOINED_S)
    assert caught.value.state == "FAILED_SETUP"
    job.kill()
    assert not _left(client)
