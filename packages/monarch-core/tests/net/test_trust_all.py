"""An unedited worker and client of torchmonarch 0.7 on two machines: one setting on both makes them work."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tools.netns import Network
from tools.netns.cluster import PORT
from tools.netns.requirement import need_namespaces

TRUST = {"MONARCH_TRUST_ALL": "1"}
WORKER = f"""
import socket
from monarch.actor import run_worker_loop_forever
print("started", flush=True)
run_worker_loop_forever(address=f"tcp://{{socket.getfqdn()}}:{PORT}", ca="trust_all_connections")
"""
CLIENT = """
import sys
from monarch.actor import Actor, attach_to_workers, endpoint

class Doubler(Actor):
    @endpoint
    def double(self, x):
        return 2 * x

hosts = attach_to_workers(name="workers", ca="trust_all_connections", workers=[sys.argv[1]])
hosts.initialized.get()
print(hosts.spawn_procs().spawn("doubler", Doubler).double.call_one(21).get())
hosts.shutdown().get()
"""


@pytest.fixture
def network() -> Iterator[Network]:
    need_namespaces()
    with Network(2) as made:
        yield made


def ended(network: Network, worker: dict[str, str], client: dict[str, str]) -> tuple[tuple[int, str], tuple[int, str, str]]:
    """Exit code and stderr of the worker, and those of the client with its output. Each runs with the given additional variables."""
    env = {name: value for name, value in os.environ.items() if name not in ("MONARCH_TRUST_ALL", "MONARCH_JOB_SECRET_FILE")}
    here, there = network.hosts
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    serving = there.popen(sys.executable, "-c", WORKER, env={**env, **worker}, **pipes)
    assert serving.stdout is not None and serving.stdout.readline() == "started\n"
    # The client dials again until the listener is there.
    script = here.popen(sys.executable, "-c", CLIENT, f"tcp://{there.name}:{PORT}", env={**env, **client}, **pipes)
    output, error = script.communicate()
    if worker and script.returncode:
        serving.kill()
    return (serving.wait(), serving.communicate()[1]), (script.returncode, output, error)


def test_pair_of_old_programs_works_by_setting(network: Network) -> None:
    (code, log), (client_code, output, error) = ended(network, TRUST, TRUST)
    assert (client_code, output) == (0, "42\n"), error + log
    assert code == 0, log
    for text in (log, error):
        assert "is used without encryption because MONARCH_TRUST_ALL is set: who can reach it can run code" in text
    assert "host.insecure" in log


def test_client_without_setting_names_it(network: Network) -> None:
    _, (code, _, error) = ended(network, TRUST, {})
    assert code == 1 and "; MONARCH_TRUST_ALL=1 at both ends, in such a network, accepts ca='trust_all_connections'" in error


def test_worker_without_setting_listens_nowhere(network: Network) -> None:
    (code, log), _ = ended(network, {}, {})
    assert code != 0 and "MONARCH_TRUST_ALL=1 at both ends" in log and "ValueError" in log
