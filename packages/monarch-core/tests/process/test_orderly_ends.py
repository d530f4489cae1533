"""Connections between hosts that a proxy ends, resets or pauses: nothing is lost while hosts live, and a host that ends is lost."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest
from connection_proxy import ConnectionProxy
from fresh_script import Script
from worker_processes import Workers

from tools.frozen import freeze

# Bytes of the large message that have passed when its connections are disturbed.
PART = 24 << 20
# Seconds: shorter than the permitted silence of hosts.
CUT_S = 0.5
SILENCE = "10s"
# The limit for a join through a paused host is proportional to this.
JOINING_SILENCE = "4s"
# The limit of silence for hosts that end, as only their silence proves the end.
SHORT_SILENCE = "3s"
# No test waits for this silence: its hosts end in another way.
LONG_SILENCE = "10m"

SCRIPT = """
import asyncio, hashlib, json, os, queue, sys, threading
import monarch.actor
from monarch.actor import Actor, SupervisionError, attach, attach_to_workers, endpoint

LARGE = 64 << 20
COUNT = 150

class Ledger(Actor):
    def __init__(self):
        self.seen = []
    @endpoint
    def take(self, n):
        self.seen.append(n)
    @endpoint
    def take_large(self, n, data):
        self.seen.append([n, len(data), hashlib.blake2b(data).hexdigest()])
        return n
    @endpoint
    def take_and_return(self, n):
        self.seen.append(n)
        return n
    @endpoint
    def taken(self):
        seen, self.seen = self.seen, []
        return seen
    @endpoint
    def reach(self, other):
        return list(other.pid.call().get().values())

class Pid(Actor):
    @endpoint
    def pid(self):
        return os.getpid()

class Sleeper(Actor):
    @endpoint
    async def wait(self):
        await asyncio.Event().wait()

def say(*words):
    print(*words, flush=True)

def told(error):
    return f"{error.failure.reason.kind} {error.failure.reason.detail}"

class Job:
    def __init__(self):
        self.faults = queue.Queue()
        monarch.actor.unhandled_fault_hook = self.faults.put
        gateway, workers, trust = json.loads(os.environ["TEST_HOSTS"])
        if gateway:
            attach(gateway, **trust)
        self.hosts = attach_to_workers(workers=workers, **trust)
        self.hosts.initialized.get()
        procs = self.hosts.spawn_procs()
        self.ledgers = procs.spawn("ledger", Ledger)
        self.processes = procs.spawn("pid", Pid)
        self.pids = list(self.processes.pid.call().get().values())
        waiters = procs.spawn("waiter", Sleeper)
        self.waits = [waiters.slice(hosts=n).wait.call_one() for n in range(len(workers))]
        self.data = os.urandom(1 << 20) * (LARGE >> 20)
        self.thread = None

    def begin(self, body):
        def run():
            try:
                self.answer = body()
            except BaseException as e:
                self.answer = f"{type(e).__name__}: {e}".splitlines()[0]
        self.thread = threading.Thread(target=run)
        self.thread.start()
        return "on"

    def ended(self):
        self.thread.join()
        return self.answer

    # ---- commands

    def idle(self, n):
        return self.begin(lambda: self.processes.pid.call().get().values() == self.pids)

    def large(self, n):
        # A large message among small ones, in their order.
        ledger = self.ledgers.slice(hosts=n)
        def body():
            ledger.take.broadcast(1)
            ledger.take_large.broadcast(2, self.data)
            ledger.take.broadcast(3)
            want = [1, [2, LARGE, hashlib.blake2b(self.data).hexdigest()], 3]
            return ledger.taken.call_one().get() == want
        return self.begin(body)

    def small(self, n):
        # Messages that nobody answers, calls to the host, and calls to all.
        ledger = self.ledgers.slice(hosts=n)
        def body():
            for i in range(COUNT):
                ledger.take.broadcast(i)
                assert ledger.take_and_return.call_one(-i).get() == -i
            assert list(self.ledgers.reach.call(self.processes).get().values()) == [self.pids] * len(self.pids)
            return ledger.taken.call_one().get() == [x for i in range(COUNT) for x in (i, -i)]
        return self.begin(body)

    def below(self):
        relayed = set(current_process().hosts.native.relayed_hosts())
        return json.dumps([n for n, id in enumerate(self.hosts.__core__.agents) if id in relayed])

    def untold(self):
        return self.faults.qsize()

    def lost(self, n):
        try:
            self.waits[n].get()
        except SupervisionError as e:
            return told(e)

    def others(self, n):
        # All but this host are as they were.
        rest = [r for r in range(len(self.pids)) if r != n]
        return [self.processes.slice(hosts=r).pid.call_one().get() for r in rest] == [self.pids[r] for r in rest]

    def stop(self):
        self.hosts.stop().get()
        return "stopped"

    def end(self):
        self.hosts.shutdown().get()
        return "over"

from monarch._core.process.current import current_process
job = Job()
say("up")
for line in sys.stdin:
    command, *numbers = line.split()
    say(getattr(job, command)(*map(int, numbers)))
"""


# A cut is a pause that ends.
DISTURBANCES: dict[str, Callable[[ConnectionProxy], None]] = {
    "end": ConnectionProxy.finish,
    "end at the dialler": ConnectionProxy.finish_near,
    "end at the listener": ConnectionProxy.finish_far,
    "reset": ConnectionProxy.reset,
    "short cut": ConnectionProxy.pause,
}


def disturb(proxy: ConnectionProxy, disturbance: str, watched: ConnectionProxy, nbytes: int = 0) -> None:
    """Disturbs the connections once the watched proxy has forwarded `nbytes` more bytes."""
    watched.when(nbytes, lambda: DISTURBANCES[disturbance](proxy))
    assert watched.acted.wait(20)
    if disturbance == "short cut":
        time.sleep(CUT_S)  # sleeps: so long nothing passes
        proxy.resume()


class Proxied:
    """Workers with a proxy in front of each, and a client that reaches them through these only."""

    def __init__(self, workers: Workers, proxies: list[ConnectionProxy], topology: str, silence: str) -> None:
        self.workers = workers
        self.proxies = proxies
        self.topology = topology
        for published, proxy in zip(workers.published, proxies, strict=True):
            published["address"] = proxy.address
        addresses = workers.addresses
        gateway = addresses[0] if topology == "gateway" else ""
        # With a gateway, one proxy is in front of it, and others are in front of the hosts that it dials.
        found = [gateway, addresses, workers.trust()]
        env = {"TEST_HOSTS": json.dumps(found), "MONARCH_HOST_LOSS_TIMEOUT": silence}
        if topology == "relayed":
            env["MONARCH_ATTACH_FAN_OUT"] = "2"
        self.script = Script(SCRIPT, prelude="", env=env, stdin=subprocess.PIPE)

    def up(self) -> None:
        self.script.until("up")

    def nothing_is_lost(self) -> None:
        assert self.script.ask("ended") == "True"
        assert self.script.ask("untold") == "0"

    def end(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.script.say("end")
        meanwhile()
        assert self.script.until("") == "over"
        self.script.end().assert_clean()


@contextlib.contextmanager
def proxied(topology: str, early: Callable[[Proxied], None] | None = None, silence: str = SILENCE) -> Iterator[Proxied]:
    with Workers(3, "tls") as workers, contextlib.ExitStack() as stack:
        proxies = [stack.enter_context(ConnectionProxy(address)) for address in workers.addresses]
        made = Proxied(workers, proxies, topology, silence)
        try:
            if early is not None:
                early(made)
            made.up()
            if topology == "relayed" and early is None:
                assert json.loads(made.script.ask("below")) == [2]
            yield made
        finally:
            made.script.close()


# The places of a disturbance: the host itself, and the host through which its connections go.
TOPOLOGIES = {"direct": [2], "relayed": [2, 1], "gateway": [1, 0]}
cases = pytest.mark.parametrize(("disturbance", "topology"), [(d, t) for t in TOPOLOGIES for d in DISTURBANCES])


@cases
def test_joining_hosts_survive_a_disturbance(disturbance: str, topology: str):
    def early(made: Proxied) -> None:
        # One disturbance is in the middle of a handshake, one when most of the joining is over.
        for nbytes in (300,) if disturbance == "short cut" else (300, 2500):
            for place in reversed(TOPOLOGIES[topology]):
                disturb(made.proxies[place], disturbance, made.proxies[place], nbytes)

    with proxied(topology, early, JOINING_SILENCE) as made:
        assert made.script.ask("small", TOPOLOGIES[topology][0]) == "on"
        made.nothing_is_lost()
        made.end()


@pytest.mark.timeout(60)  # the test waits for several silences, one after another
@cases
def test_disturbance_between_hosts_loses_nothing(disturbance: str, topology: str):
    host, *_ = places = TOPOLOGIES[topology]
    with proxied(topology) as made:
        # Traffic to the host goes through its own proxy, whatever is before it. The relay comes first: later the client may have direct
        # connections.
        watched = made.proxies[host]
        for place in reversed(places):
            proxy = made.proxies[place]
            # Nothing is in flight.
            disturb(proxy, disturbance, watched)
            assert made.script.ask("idle", host) == "on"
            made.nothing_is_lost()
            # Many small calls are in flight; the disturbance comes twice in their middle.
            assert made.script.ask("small", host) == "on"
            for _ in range(2):
                disturb(proxy, disturbance, watched, 10_000)
            made.nothing_is_lost()
            # A large message is in flight; the disturbance comes in its middle.
            assert made.script.ask("large", host) == "on"
            disturb(proxy, disturbance, watched, PART)
            made.nothing_is_lost()
        made.end()


def test_relayed_host_ends_after_its_relay():
    with proxied("relayed", silence=LONG_SILENCE) as made:
        relayed, relay = (made.workers.processes[n] for n in TOPOLOGIES["relayed"])
        assert made.script.ask("stop") == "stopped"
        freeze(relayed.pid)

        def meanwhile() -> None:
            # The relay has ended before the relayed host answers. A refused connection would show that the host has ended, but the proxy
            # accepts every connection.
            assert relay.wait() == 0
            os.kill(relayed.pid, signal.SIGCONT)

        made.end(meanwhile)


def is_lost(made: Proxied, host: int) -> None:
    """The host is lost, with a reason; other hosts are not."""
    why = made.script.ask("lost", host)
    assert why.startswith("host_lost ") and why.removeprefix("host_lost "), why
    if made.topology != "gateway" or host != 0:
        assert made.script.ask("others", host) == "True"


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_killed_host_behind_a_refusing_proxy_is_lost(topology: str):
    host = TOPOLOGIES[topology][0]
    with proxied(topology, silence=SHORT_SILENCE) as made:
        made.proxies[host].refuse()
        made.workers.processes[host].kill()
        is_lost(made, host)
        made.end()


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_killed_host_behind_an_accepting_proxy_is_lost(topology: str):
    host = TOPOLOGIES[topology][0]
    with proxied(topology, silence=SHORT_SILENCE) as made:
        # The proxy accepts connections, finds that its server is gone, and closes them.
        made.workers.processes[host].kill()
        is_lost(made, host)
        made.end()


@pytest.mark.parametrize("refuses", [True, False], ids=["refuses", "accepts"])
def test_killed_gateway_behind_a_proxy_is_lost(refuses: bool):
    with proxied("gateway", silence=SHORT_SILENCE) as made:
        if refuses:
            made.proxies[0].refuse()
        made.workers.processes[0].kill()
        for host in range(3):
            assert made.proxies[0].address in made.script.ask("lost", host)
        made.script.process.kill()


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_another_worker_behind_the_proxy_proves_a_loss(topology: str):
    host = TOPOLOGIES[topology][0]
    with proxied(topology, silence=SHORT_SILENCE) as made:
        # The other worker has the same secret, so it would admit the client.
        other = made.workers.start()
        made.proxies[host].redirect(made.workers.addresses[other])
        made.workers.processes[host].kill()
        is_lost(made, host)
        made.end()
