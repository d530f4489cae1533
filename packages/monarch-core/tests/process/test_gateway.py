"""A client that can dial one agent only reaches all hosts through it."""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import socket
from typing import Any

import pytest
from forwarded_port import ForwardedPort
from fresh_script import Done, Script
from fresh_script import run as run_script
from worker_processes import Workers

PRELUDE = """
import json, os, signal, sys
from pathlib import Path

import monarch.actor
from monarch.actor import Actor, AttachError, SupervisionError, attach, attach_to_workers, context, endpoint, this_host
from monarch.config import configure

gateway, workers, trust = json.loads(os.environ.get("TEST_HOSTS", '["", [], {}]'))
# Tells when to go on; in the mask of this thread and of all that it starts.
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})

class Echo(Actor):
    def __init__(self):
        self.seen = []

    @endpoint
    def echo(self, x):
        self.seen.append(x)
        return x

    @endpoint
    def all_seen(self):
        return self.seen

    @endpoint
    def parent(self):
        return os.getppid()

    @endpoint
    def call(self, others, x):
        return list(others.echo.call(x).get().values())

    @endpoint
    def wait(self):
        signal.pause()

def say(*words):
    print(*words, flush=True)

def connections():
    # The ports that this process has TCP connections to.
    own = set()
    for fd in Path("/proc/self/fd").iterdir():
        try:
            own.add(os.readlink(fd).removeprefix("socket:[").removesuffix("]"))
        except OSError:
            continue
    fields = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    # Established, or on the way to be.
    return {int(f[2].rpartition(":")[2], 16) for f in fields if f[9] in own and f[3] in ("01", "02")}
"""


def hosts(workers: Workers, gateway: str, trust: dict[str, Any] | None = None) -> dict[str, Any]:
    found = (gateway, workers.addresses, workers.trust() if trust is None else trust)
    return {"prelude": PRELUDE, "env": {"TEST_HOSTS": json.dumps(found)}}


def run(code: str, options: dict[str, Any] | None = None) -> str:
    """The output of a script that ends with 0, with nothing on stderr and nothing left."""
    done: Done = run_script(code, **(options or {"prelude": PRELUDE}))
    done.assert_clean()
    return done.out


@pytest.mark.parametrize("kind", ["tls", "insecure"])
def test_all_hosts_through_one_port(kind: str):
    with Workers(3, kind) as workers, ForwardedPort(workers.addresses[0]) as port:
        said = run(
            """
import warnings
warnings.filterwarnings("ignore", ".*without encryption")
attach(gateway, **trust)
attach(gateway, **trust)
hosts = attach_to_workers(workers=workers, **trust)
hosts.initialized.get()
procs = hosts.spawn_procs({"procs": 2})
echoes, callers = procs.spawn("echo", Echo), procs.spawn("caller", Echo)
assert list(echoes.echo.call(1).get().values()) == [1] * 6
large = os.urandom(5 << 20)
assert all(x == large for x in echoes.echo.call(large).get().values())
# Hosts reach each other, and this machine, as ever.
assert callers.slice(hosts=2, procs=0).call.call_one(echoes, 7).get() == [7] * 6
here = this_host().spawn_procs().spawn("here", Echo)
assert list(here.echo.call(2).get().values()) == [2]
assert here.parent.call_one().get() not in set(echoes.parent.call().get().values())
assert here.call.call_one(echoes, 8).get() == [8] * 6
assert callers.slice(hosts=1, procs=1).call.call_one(here, 9).get() == [9]
assert connections() == {int(gateway.rpartition(":")[2])}, connections()
hosts.shutdown().get()
say("over")
""",
            hosts(workers, port.address),
        )
        assert said == "over\n"
        assert [process.wait() for process in workers.processes] == [0, 0, 0]


def test_messages_survive_cuts_of_the_port():
    with Workers(3, "tls") as workers, ForwardedPort(workers.addresses[0]) as port:
        script = Script(
            """
attach(gateway, **trust)
echoes = attach_to_workers(workers=workers, **trust).spawn_procs().spawn("echo", Echo)
echoes.echo.call(-1).get()
for n in range(600):
    echoes.echo.broadcast(n)
    if n % 200 == 100:
        say("cut")
    if n % 200 == 199:
        signal.sigwait({signal.SIGUSR1})
assert all(seen == [-1, *range(600)] for seen in echoes.all_seen.call().get().values())
say("all there")
""",
            **hosts(workers, port.address),
        )
        try:
            for _ in range(3):
                script.until("cut")
                port.cut()
                script.send(signal.SIGUSR1)
            script.until("all there")
        except BaseException:
            script.close()
            raise
        script.end().assert_clean()


def lost(workers: Workers, port: ForwardedPort, victim: int, how: int = signal.SIGKILL) -> dict[str, Any]:
    """The report of a client after the agent of a host is killed or stopped."""
    options = hosts(workers, port.address)
    options["env"]["TEST_VICTIM"] = str(victim)
    script = Script(
        """
attach(gateway, **trust)
monarch.actor.unhandled_fault_hook = lambda failure: None
echoes = attach_to_workers(workers=workers, **trust).spawn_procs().spawn("echo", Echo)
echoes.echo.call(1).get()
calls = [echoes.slice(hosts=n).wait.call_one() for n in range(len(workers))]
say("up")
def why(call):
    try:
        call.get()
    except SupervisionError as e:
        return e.failure.reason.detail
victim = int(os.environ["TEST_VICTIM"])
answer = {"victim": why(calls[victim])}
if victim == 0:
    answer["others"] = [why(call) for call in calls[1:]]
say("answer", json.dumps(answer))
os._exit(0)
""",
        **options,
    )
    try:
        script.until("up")
        workers.processes[victim].send_signal(how)
        return json.loads(script.until("answer").partition(" ")[2])
    finally:
        script.close()


def test_killed_host_behind_the_gateway_is_lost():
    with Workers(3, "tls") as workers, ForwardedPort(workers.addresses[0]) as port:
        assert lost(workers, port, 1) == {"victim": "agent killed"}


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_lost_gateway_fails_all_hosts_behind_it(how: signal.Signals):
    with Workers(3, "tls") as workers, ForwardedPort(workers.addresses[0]) as port:
        said = lost(workers, port, 0, how)
        for why in [said["victim"], *said["others"]]:
            assert port.address in why, said


def test_fault_cuts_off_the_gateway_or_a_host():
    with Workers(3, "tls") as workers, ForwardedPort(workers.addresses[0]) as port:
        said = run(
            """
from monarch.actor.testing import fault
configure(host_loss_timeout="60s")
attach(gateway, **trust)
hosts = attach_to_workers(workers=workers, **trust)
echoes = hosts.spawn_procs().spawn("echo", Echo)
procs = this_host().spawn_procs()
here, asking = procs.spawn("here", Echo), procs.spawn("asking", Echo)
assert list(echoes.echo.call(0).get().values()) == [0] * 3
def waits(call):
    try:
        call.get(timeout=0)
    except TimeoutError:
        return True
for n in range(3):
    for cut, others in ((1, [0, 2]), (0, [])):
        with fault(hosts.slice(hosts=cut), "cut"):
            late = [echoes.slice(hosts=host).echo.call_one(n) for host in range(3)]
            asked = asking.call.call_one(echoes, n)
            assert [late[host].get() for host in others] == [n for _ in others]
            assert here.echo.call_one(n).get() == n
            assert waits(asked) and all(waits(late[host]) for host in range(3) if host not in others)
        assert [call.get() for call in late] == asked.get() == [n] * 3
hosts.shutdown().get()
say("over")
""",
            hosts(workers, port.address),
        )
        assert said == "over\n"


def test_unreachable_hosts_behind_the_gateway_are_named():
    with Workers(1, "tls") as workers:
        said = run(
            """
configure(mesh_attach_config_timeout="1s")
attach(gateway, **trust)
hosts = {}
for address in ("tcp://127.0.0.1:1", "tcp://no-such-host.invalid:22222", "ipc:///tmp/no-such-socket"):
    try:
        attach_to_workers(workers=[address], **trust).initialized.get()
    except AttachError as e:
        hosts.update(e.hosts)
print(json.dumps(hosts))
""",
            hosts(workers, workers.addresses[0]),
        )
        why = json.loads(said)
        assert why["tcp://127.0.0.1:1"] == "connection refused"
        assert why["tcp://no-such-host.invalid:22222"].startswith("name not found: ")
        assert why["ipc:///tmp/no-such-socket"] == "only tcp addresses are reached through a gateway"


def test_so_many_tunnels_and_no_more():
    """A client cannot use up the gateway, whose other clients continue; ended tunnels are free again."""
    with Workers(2, "tls") as workers, contextlib.ExitStack() as stack:
        # Tunnels of one client may take a quarter of the gateway's descriptors.
        resource.prlimit(workers.processes[0].pid, resource.RLIMIT_NOFILE, (80, 80))
        # Servers that accept connections, and send nothing.
        mute = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(24)]
        options = hosts(workers, workers.addresses[0])
        options["env"]["TEST_MUTE"] = json.dumps([f"tcp://127.0.0.1:{one.getsockname()[1]}" for one in mute])
        said = run(
            """
configure(mesh_attach_config_timeout="2s")
attach(gateway, **trust)
try:
    attach_to_workers(workers=json.loads(os.environ["TEST_MUTE"]), **trust).initialized.get()
except AttachError as e:
    print(json.dumps(list(e.hosts.values())))
echo = attach_to_workers(workers=workers[1:], **trust).spawn_procs().spawn("echo", Echo)
print(echo.echo.call_one(3).get())
""",
            options,
        )
        why, answer = said.splitlines()
        found = json.loads(why)
        refused = [text for text in found if "the gateway has 20 tunnels for this client already" in text]
        # A refused client tries again, and its error has the refusal, even if its last attempt is cut short.
        assert len(found) == 24 and len(refused) == 4 and found.count("no answer") == 20, why
        assert answer == "3"


def test_hosts_by_name():
    with Workers(2, "tls") as workers:
        for published in workers.published:
            published["address"] = published["address"].replace("127.0.0.1", "localhost")
        said = run(
            """
attach(gateway, **trust)
say(*attach_to_workers(workers=workers, **trust).spawn_procs().spawn("echo", Echo).echo.call(3).get().values())
""",
            hosts(workers, workers.addresses[0]),
        )
        assert said == "3 3\n"


def test_host_with_another_secret_is_refused():
    with Workers(1, "tls") as workers, Workers(1, "tls") as strangers:
        said = run(
            """
attach(gateway, **trust)
try:
    attach_to_workers(workers=workers, **trust).initialized.get()
except AttachError as e:
    print(type(e).__name__, *e.hosts.values())
""",
            hosts(strangers, workers.addresses[0], workers.trust()),
        )
        assert said.startswith("AuthenticationError ")


def test_wrong_gateway():
    with Workers(1, "tls") as workers:
        said = run(
            """
configure(mesh_attach_config_timeout="300ms")
try:
    attach("tcp://127.0.0.1:1", **trust)
except AttachError as e:
    print(e)
# Nothing has gone through it: another one may be tried.
configure(mesh_attach_config_timeout="30s")
attach(gateway, **trust)
assert attach_to_workers(workers=workers, **trust).initialized.get()
try:
    attach("tcp://127.0.0.1:1", **trust)
except RuntimeError as e:
    print(e)
""",
            hosts(workers, workers.addresses[0]),
        )
        first, second = said.splitlines()
        assert "tcp://127.0.0.1:1: connection refused" in first
        assert "attach" in second
        assert workers.addresses[0] in second


def test_attach_after_the_client_has_started():
    said = run("""
context()
try:
    attach("tcp://127.0.0.1:1", insecure=True)
except RuntimeError as e:
    say(e)
""")
    assert "attach" in said
    assert "started" in said


def test_attach_by_the_secret_file_of_the_environment():
    with Workers(2, "tls") as workers:
        found = hosts(workers, workers.addresses[0])
        said = run(
            """
attach(gateway)
echoes = attach_to_workers(workers=workers[1:]).spawn_procs().spawn("echo", Echo)
print(echoes.echo.call_one(5).get(), connections() == {int(gateway.rpartition(":")[2])})
""",
            {**found, "env": {**found["env"], "MONARCH_JOB_SECRET_FILE": str(workers.secret)}},
        )
        assert said == "5 True\n"


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:22222", "nothing"])
def test_bad_arguments(address: str):
    said = run(f"""
try:
    attach({address!r})
except ValueError as e:
    say("refused", e)
""")
    assert said.startswith("refused ")
