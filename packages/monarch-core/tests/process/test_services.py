"""Services of hosts: one per host, started with the first use, kept running, ended with the agent or with the job."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fresh import lines, run
from fresh_script import wait_for_end
from service_actors import Perch, declare
from worker_processes import Workers

from monarch._core.observe import inspection
from monarch.actor import Channel, HostMesh, SupervisionError, endpoint, this_host
from monarch.extension import Service, ServiceError, service
from tools.frozen import freeze

HERE = str(Path(__file__).parent)
# The script of another client: it attaches to the workers of its arguments, and uses their service.
ATTACHED = """
import sys
from monarch.actor import attach_to_workers
from monarch.extension import service
from service_actors import declare
declare("shared", shared=True)
declare("own")
hosts = attach_to_workers(workers=sys.argv[1:])
"""


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers(2, env={**os.environ, "PYTHONPATH": HERE}) as found:
        yield found


@pytest.fixture(scope="module")
def hosts(workers: Workers) -> HostMesh:
    declare("shared", shared=True)
    declare("own")
    return workers.attach()


def test_clients_that_ask_at_once_get_one() -> None:
    name = declare("raced")
    pids: list[int] = []
    barrier = threading.Barrier(4)

    def use() -> None:
        barrier.wait()
        pids.append(service(this_host(), name).pid.call_one().get())

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(pids) == 4 and len(set(pids)) == 1 and pids[0] != os.getpid()


def test_actors_of_a_job_find_their_hosts_service() -> None:
    name = declare("found")
    service(this_host(), name).sit.call_one("client").get()

    class Asker(Perch):
        @endpoint
        def ask(self) -> list[str]:
            declare(name)
            return service(this_host(), name).sit.call_one("actor").get()

    procs = this_host().spawn_procs()
    assert procs.spawn("asker", Asker).ask.call_one().get() == ["client", "actor"]
    procs.stop().get()


@pytest.mark.parametrize("end", ["leave", "fall", "kill"])
def test_service_that_ends_is_started_again(end: str) -> None:
    name = declare(f"ending by {end}")
    perch = service(this_host(), name)
    pid = perch.pid.call_one().get()
    perch.sit.call_one("before").get()
    if end == "fall":
        perch.fall.broadcast()
    elif end == "kill":
        os.kill(pid, signal.SIGKILL)
    else:
        with pytest.raises(SupervisionError, match="exited with non-zero code 7"):
            perch.leave.call_one().get()
    with pytest.raises(SupervisionError):
        while True:
            perch.double.call_one(1).get()
    again = service(this_host(), name)
    assert again.pid.call_one().get() != pid and again.sit.call_one("after").get() == ["after"]
    with pytest.raises(SupervisionError):
        perch.pid.call_one().get()
    (mine,) = [one.answer for one in inspection.look(inspection.STATE) if one.answer and one.answer["agent_pid"] == os.getpid()]
    (note,) = [note for note in mine["notes"] if note.startswith(name)]
    assert "started again after 1 ends" in note, note


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("raises", "LookupError: no wood"),
        ("type", "TypeError: .*NoneType"),
        ("dies", "exited with non-zero code 8"),
        ("hangs", "did not start within 0.5 s"),
    ],
)
def test_service_that_does_not_start(how: str, words: str) -> None:
    name = declare(f"broken by {how}", start_seconds=0.5)
    with pytest.raises(ServiceError, match=words) as found:
        service(this_host(), name, {"how": how})
    assert found.value.code == "service_failed" and f"service broken by {how} on host" in str(found.value)
    # The next use starts it again.
    assert service(this_host(), name, {"how": ""}).sit.call_one("a").get() == ["a"]
    assert service(this_host(), name).sit.call_one("b").get() == ["a", "b"]


def test_invalid_service_request_is_named() -> None:
    name = declare("colored", arguments={"color": "red"})
    service(this_host(), name)
    with pytest.raises(ServiceError, match=r"runs with the arguments \{'color': 'red'\}, and cannot have \{'color': 'blue'\}"):
        service(this_host(), name, {"color": "blue"})
    with pytest.raises(TypeError, match=r"service\('colored'\): the arguments do not fit Perch: got an unexpected keyword argument 'size'"):
        service(this_host(), name, {"size": 3})
    with pytest.raises(TypeError, match=r"service\('colored'\): arguments are a mapping of keyword arguments, not list"):
        service(this_host(), name, [])  # pyright: ignore
    with pytest.raises(TypeError, match=r"service\('colored'\): the name of an argument is a str, not 3"):
        service(this_host(), name, {3: 4})  # pyright: ignore
    with pytest.raises(TypeError, match=r"service\('colored'\): expected a mesh of hosts, not NoneType"):
        service(None, name)  # pyright: ignore
    with pytest.raises(TypeError, match=r"service\(None\): expected the name of a service"):
        service(this_host(), None)  # pyright: ignore
    with pytest.raises(ValueError, match=r"service\('colored'\): timeout=0: expected a finite number of seconds, more than 0"):
        service(this_host(), name, timeout=0)
    with pytest.raises(TypeError, match=r"Service\(Perch\): arguments are a mapping of keyword arguments, not list"):
        Service(Perch, arguments=[])  # pyright: ignore
    with pytest.raises(TypeError, match="plain data"):
        service(this_host(), name, {"color": object()})
    with pytest.raises(ServiceError, match="no service 'nothing' is installed"):
        service(this_host(), "nothing")
    with pytest.raises(ServiceError, match=r"is 3, not a monarch\.extension\.Service"):
        service(this_host(), declare("odd", 3))
    with pytest.raises(AttributeError):
        Service(Perch).shared = True  # pyright: ignore


@pytest.mark.parametrize("bound", ["argument", "declaration"])
def test_stopped_service_does_not_block_its_users(bound: str) -> None:
    name = declare(f"stopped, bounded by the {bound}", start_seconds=30.0 if bound == "argument" else 1.0)
    pid = service(this_host(), name).pid.call_one().get()
    freeze(pid)
    try:
        text = rf"service {name} on host \S+: it runs as process {pid}, and does not answer within (0\.2|1) s"
        with pytest.raises(ServiceError, match=text) as found:
            service(this_host(), name, timeout=0.2 if bound == "argument" else None)
        assert found.value.code == "service_failed"
    finally:
        os.kill(pid, signal.SIGCONT)
    assert service(this_host(), name).pid.call_one().get() == pid


def test_slow_start_of_a_service_times_out() -> None:
    name = declare("late", start_seconds=30.0)
    with pytest.raises(ServiceError, match=r"service late on host \S+: it has not started within 0\.2 s"):
        service(this_host(), name, {"how": "waits"}, timeout=0.2)
    # The start continues, for requests with enough time.
    Perch.go_on(name)
    assert service(this_host(), name).sit.call_one("a").get() == ["a"]


def test_unresponsive_agent_does_not_block_users() -> None:
    # A handler of another wheel occupies the extension thread of the agent.
    source = """
    import threading
    from monarch.actor import this_host
    from monarch.extension import ServiceError, ask, member, serve, service
    from service_actors import declare
    done = threading.Event()
    serve("test.waits", lambda request: b"" if done.wait() else b"")
    waiting = ask(member().proc, "test.waits")
    try:
        service(this_host(), declare("unheard"), timeout=0.1)
    except ServiceError as e:
        print(str(e).splitlines()[0])
    done.set()
    waiting.get()
    print(service(this_host(), "unheard").sit.call_one("a").get())
    """
    first, second = lines(run(source).stdout)
    assert first.startswith("service unheard on host ") and first.endswith(": the agent of the host does not answer")
    assert second == "['a']"


def test_shared_service_outlives_the_client_that_asked_first(workers: Workers) -> None:
    source = ATTACHED + "for birds in service(hosts, 'shared').sit.call(str(len(sys.argv))).get().values(): print(birds)"
    assert lines(run(source, *workers.addresses).stdout) == ["['3']"] * 2
    assert lines(run(source, *workers.addresses).stdout) == ["['3', '3']"] * 2
    assert lines(run(source, workers.addresses[1]).stdout) == ["['3', '3', '2']"]


def test_service_of_a_job_ends_with_it(workers: Workers, hosts: HostMesh) -> None:
    mine = service(hosts, "own")
    source = ATTACHED + "own = service(hosts, 'own')\nfor value in own.pid.call().get().values(): print(value)"
    theirs = [int(pid) for pid in lines(run(source, *workers.addresses).stdout)]
    pids = list(mine.pid.call().get().values())
    assert len({*pids, *theirs}) == 4
    for pid in theirs:
        assert wait_for_end(pid)
    assert list(mine.pid.call().get().values()) == pids


def test_jobs_call_a_shared_service_concurrently(workers: Workers, hosts: HostMesh) -> None:
    source = ATTACHED + (
        "shared = service(hosts, 'shared')\n"
        "for n in range(300): assert list(shared.double.call(n).get().values()) == [2 * n, 2 * n], n\n"
        "print('done')\n"
    )
    found: list[str] = []
    other = threading.Thread(target=lambda: found.append(run(source, *workers.addresses).stdout))
    other.start()
    shared = service(hosts, "shared")
    for n in range(300):
        assert list(shared.double.call(-n).get().values()) == [-2 * n, -2 * n]
    other.join()
    assert found == ["done\n"]


def test_service_and_job_send_to_each_other(hosts: HostMesh) -> None:
    shared = service(hosts, "shared")
    large = b"x" * (9 << 20)
    assert shared.slice(hosts=1).double.call_one(large).get() == large + large
    port, receiver = Channel[str].open()
    shared.send.call(port).get()
    assert [receiver.recv().get(timeout=20) for _ in range(2)] == ["green", "green"]
    # A port of the service is used here and by an actor on the other host.
    there = shared.slice(hosts=0).listen.call_one().get()
    there.send("from the client")
    assert shared.slice(hosts=0).heard.call_one().get() == "from the client"
    # The service calls actors of this job, on both hosts and here; and they call the service.
    procs, local = hosts.spawn_procs(), this_host().spawn_procs()
    actors, near = procs.spawn("perch", Perch), local.spawn("perch", Perch)
    assert sorted(shared.forward.call(actors, "a").get().values()) == [["a"], ["a", "a"]]
    assert shared.slice(hosts=0).forward.call_one(near, "b").get() == ["b"]
    for rank in range(2):
        birds = actors.slice(hosts=rank).forward.call_one(shared, "by an actor").get()
        assert birds[-1] == "by an actor"
    procs.stop().get()
    local.stop().get()


def test_service_is_shown_with_the_host(workers: Workers, hosts: HostMesh) -> None:
    shared = service(hosts, "shared")
    pids = set(shared.pid.call().get().values())
    (mine,) = [one.answer for one in inspection.look(inspection.STATE) if one.answer and one.answer["agent_pid"] == os.getpid()]
    shown = {proc["pid"]: proc["name"] for other in inspection.others(mine) if other.answer for proc in other.answer["procs"]}
    assert pids <= set(shown) and all(shown[pid].endswith("<service shared>") for pid in pids)


def test_service_without_its_wheel_on_a_host() -> None:
    with Workers(1) as bare, pytest.raises(ServiceError, match="ModuleNotFoundError: No module named 'service_actors'"):
        service(bare.attach(), declare("own"))


def test_service_ends_with_its_agent() -> None:
    with Workers(1, env={**os.environ, "PYTHONPATH": HERE}) as one:
        hosts = one.attach()
        perch = service(hosts, declare("shared", shared=True))
        pid = perch.pid.call_one().get()
        one.processes[0].kill()
        assert wait_for_end(pid)
        with pytest.raises(Exception, match="agent exited|host"):
            perch.pid.call_one().get()
        with pytest.raises(ServiceError):
            service(hosts, "shared")


def test_service_ends_with_the_client_that_hosts_it() -> None:
    source = "from monarch.actor import this_host\nfrom monarch.extension import service\nfrom service_actors import declare\n"
    source += "print(service(this_host(), declare('own')).pid.call_one().get())"
    found: Any = run(source)
    assert wait_for_end(int(found.stdout))
