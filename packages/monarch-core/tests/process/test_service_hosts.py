"""Services of several hosts and jobs: requests between them, and the effect of a job's or an agent's end on the others."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fresh_script import wait_for_end
from service_actors import Asker, declare
from worker_processes import Workers

from monarch.actor import ActorError, HostMesh, this_host
from monarch.extension import ServiceError, reach, service

HERE = str(Path(__file__).parent)


@pytest.fixture(scope="module", params=["unix", "tls"])
def workers(request: pytest.FixtureRequest) -> Iterator[Workers]:
    with Workers(2, request.param, env={**os.environ, "PYTHONPATH": HERE}) as found:
        yield found


@pytest.fixture(scope="module")
def hosts(workers: Workers) -> HostMesh:
    return workers.attach()


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "of one job"])
def test_services_procs_and_the_client_ask_each_other(hosts: HostMesh, shared: bool) -> None:
    services = service(hosts, declare(f"asker, {shared}", Asker, shared=shared))
    far, near = hosts.spawn_procs().spawn("far", Asker), this_host().spawn_procs().spawn("near", Asker)
    members: dict[str, Any] = {"near": near}
    for host in range(2):
        members[f"service {host}"], members[f"proc {host}"] = services.slice(hosts=host), far.slice(hosts=host)
    found = {name: one.places.call_one().get() for name, one in members.items()}
    # A service has two jobs: its own, and the one that it serves.
    assert {name: len(there) for name, (_, there) in found.items()} == {name: 1 + name.startswith("service") for name in members}
    for name, one in members.items():
        for other, (proc, there) in found.items():
            assert one.ask.call_one(proc, there).get(timeout=30) == b"cba", (name, other)
    # A service finds the job of a host.
    (_, host) = found["proc 1"][1][0]
    assert services.slice(hosts=0).ask_on.call_one(found["proc 1"][0], host).get(timeout=30) == b"cba"
    with pytest.raises(ActorError, match=r"no job that this service serves has a host of this identity"):
        services.slice(hosts=0).ask_on.call_one(found["proc 1"][0], 77).get(timeout=30)
    with pytest.raises(LookupError, match=r"this process is not of the job <\w+>, nor does it serve it"):
        reach(found["service 0"][0], host, 77)


OTHER = """
import sys, os
from monarch.actor import attach_to_workers
from monarch.extension import service
from service_actors import Asker, declare
secret = {"secret": sys.argv[1]} if sys.argv[1] else {}
hosts = attach_to_workers(workers=sys.argv[2:], **secret)
found = service(hosts, declare("kept", Asker, shared=True))
own = service(hosts, declare("own", Asker))
print(*found.pid.call().get().values(), *own.pid.call().get().values(), flush=True)
for line in sys.stdin:
    print(sum(found.double.call(int(line)).get().values()), flush=True)
"""


class Other:
    """Another client, with the service of the same hosts."""

    def __init__(self, workers: Workers) -> None:
        secret = workers.trust().get("secret", "")
        command = [sys.executable, "-c", OTHER, secret, *workers.addresses]
        paths = os.pathsep.join([HERE, *filter(None, sys.path)])
        self.process = subprocess.Popen(
            command, env={**os.environ, "PYTHONPATH": paths}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        pids = [int(pid) for pid in self.line().split()]
        self.shared, self.own = pids[:2], pids[2:]

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def use(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("5\n")
        self.process.stdin.flush()
        assert self.line() == "20\n"

    def end(self, kill: bool) -> None:
        assert self.process.stdin is not None
        if kill:
            self.process.kill()
        self.process.communicate()
        assert self.process.returncode == (-9 if kill else 0)


@pytest.mark.parametrize("kill", [True, False], ids=["killed", "ends"])
def test_end_of_a_job_keeps_shared_services(workers: Workers, hosts: HostMesh, kill: bool) -> None:
    mine = service(hosts, declare("kept", Asker, shared=True))
    pids = list(mine.pid.call().get().values())
    first, second = Other(workers), Other(workers)
    assert first.shared == second.shared == pids and len({*first.own, *second.own}) == 4
    first.use()
    # The calls are in flight at its end.
    flood = [mine.double.call(n) for n in range(200)]
    first.end(kill)
    for pid in first.own:
        assert wait_for_end(pid)
    assert [list(answers.get().values()) for answers in flood] == [[2 * n] * 2 for n in range(200)]
    second.use()
    second.end(False)
    for pid in second.own:
        assert wait_for_end(pid)
    assert list(mine.pid.call().get().values()) == pids
    # The next job has its own ids for the same hosts.
    third = Other(workers)
    assert third.shared == pids
    third.use()
    third.end(False)


INTRODUCES = """
import os, sys
from monarch.actor import attach_to_workers
from monarch.extension import service
from service_actors import Asker, declare
secret = {"secret": sys.argv[2]} if sys.argv[2] else {}
found = service(attach_to_workers(workers=sys.argv[3:], **secret), declare("neighbours", Asker, shared=True))
first, second = (found.slice(hosts=rank) for rank in range(2))
first.wait_for.call_one(*second.places.call_one().get()).get()
if sys.argv[1] == "killed":
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("how", ["killed", "ends"])
def test_end_of_the_introducing_job_fails_requests(how: str) -> None:
    paths = os.pathsep.join([HERE, *filter(None, sys.path)])
    with Workers(2, env={**os.environ, "PYTHONPATH": HERE}) as both:
        services = service(both.attach(), declare("neighbours", Asker, shared=True))
        command = [sys.executable, "-c", INTRODUCES, how, both.trust().get("secret", ""), *both.addresses]
        subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, timeout=50, check=how == "ends")
        assert services.slice(hosts=0).outcome.call_one().get(timeout=30).startswith("request_proc_ended: ")
        # Both services continue for the remaining clients.
        assert list(services.double.call(2).get().values()) == [4, 4]


def test_end_of_an_agent_ends_its_services_only() -> None:
    with Workers(2, env={**os.environ, "PYTHONPATH": HERE}) as both:
        hosts = both.attach()
        mine = service(hosts, declare("kept", Asker, shared=True))
        other = Other(both)
        pids = list(mine.pid.call().get().values())
        both.processes[0].kill()
        assert wait_for_end(pids[0])
        with pytest.raises(Exception, match="agent exited|host"):
            mine.slice(hosts=0).pid.call_one().get()
        assert mine.slice(hosts=1).pid.call_one().get() == pids[1]
        with pytest.raises(ServiceError, match=r"service kept on host .*lost: agent (exited|killed)"):
            service(hosts, "kept")
        assert service(hosts.slice(hosts=1), "kept").pid.call_one().get() == pids[1]
        other.end(True)
        assert service(hosts.slice(hosts=1), "kept").pid.call_one().get() == pids[1]
