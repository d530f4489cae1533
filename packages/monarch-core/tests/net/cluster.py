"""Hosts in network namespaces with a worker each, and client scripts on a host of their own that do what a test tells them."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import textwrap
from pathlib import Path
from types import TracebackType

from tools.netns import Host, Network, Process

PORT = 22222
MONARCH = "from monarch._core.cli import main; main()"

# Commands come as lines, each is answered by one line. On each host there are two procs with two actors each.
PRELUDE = """
import asyncio, json, os, queue, random, signal, sys, threading, time
import monarch.actor
from monarch.actor import Actor, Channel, SupervisionError, attach_to_workers, current_rank, endpoint

FOLDER = os.environ["TEST_FOLDER"]

def large(n):
    # Of a period that a stretch of it does not have.
    return random.Random(n).randbytes(65521) * 64

class Worker(Actor):
    def __init__(self):
        self.seen = []
    @endpoint
    def pid(self):
        return os.getpid()
    @endpoint
    def take(self, x):
        self.seen.append(x)
    @endpoint
    def taken(self):
        return self.seen
    @endpoint
    def take_large(self, n, data):
        self.seen.append(("large", n) if data == large(n) else ("broken", n))
    @endpoint
    def reach(self, other):
        return other.pid.call_one().get() > 0
    @endpoint
    def relay(self, other, count):
        for i in range(count):
            other.take.broadcast(i)
            time.sleep(0.01)  # sleeps: spreads the messages over the fault
        return other.taken.call_one().get()
    @endpoint
    def ask(self, other):
        try:
            other.wait.call_one().get()
        except SupervisionError as e:
            return told(e)
    def __cleanup__(self, exc):
        with open(f"{FOLDER}/cleanup-{os.uname().nodename}-{os.getpid()}", "w") as f:
            f.write(str(exc))

class Waiter(Actor):
    @endpoint
    async def wait(self):
        await asyncio.Event().wait()

def say(*words):
    print(*words, flush=True)

def told(error):
    reason = error.failure.reason
    return f"{reason.kind} {error.failure.host}: {reason.detail}"

class Job:
    def __init__(self, workers):
        self.faults = queue.Queue()
        monarch.actor.unhandled_fault_hook = self.faults.put
        self.hosts = attach_to_workers(workers=workers, secret=os.environ["TEST_SECRET"])
        procs = self.hosts.spawn_procs({"procs": 2})
        self.workers, self.waiters = procs.spawn("worker", Worker), procs.spawn("waiter", Waiter)
        self.pids = list(self.workers.pid.call().get().values())
        self.calls = {n: self.waiters.slice(hosts=n).wait.call() for n in range(len(workers))}
        self.sent = 0
        self.flow = None

    # ---- commands

    def pids_of(self, n):
        return json.dumps(self.pids[2 * n : 2 * n + 2])

    def lost(self, n):
        # Until the calls to this host fail.
        try:
            self.calls[n].get()
        except SupervisionError as e:
            return told(e)

    def told(self, n):
        # The next n failures that reach the root.
        failures = [self.faults.get() for _ in range(n)]
        return " ".join(sorted(f"{f.host}:{f.name}:{rank}" for f in failures for rank in f.crashed_ranks))

    def untold(self):
        return self.faults.qsize()

    def alive(self, n):
        return self.workers.slice(hosts=n).pid.call().get() is not None

    def cast(self, times):
        # Calls to all, which all answer.
        return all(list(self.workers.pid.call().get().values()) == self.pids for _ in range(times))

    def stream(self):
        # Messages to all, until `streamed`.
        self.over = threading.Event()
        def run():
            while not self.over.is_set():
                self.workers.take.broadcast(self.sent)
                self.sent += 1
                time.sleep(0.005)  # sleeps: spreads the messages over the faults
        self.flow = threading.Thread(target=run)
        self.flow.start()
        return "on"

    def bulk(self):
        # Large messages and small ones to all, until `bulked`.
        self.over = threading.Event()
        def run():
            while not self.over.is_set():
                self.workers.take_large.broadcast(self.sent, large(self.sent))
                self.workers.take.broadcast(self.sent)
                self.sent += 1
                if self.sent % 4 == 0:
                    # No more than that at once.
                    self.workers.pid.call().get()
        self.flow = threading.Thread(target=run)
        self.flow.start()
        return "on"

    def bulked(self):
        self.over.set()
        self.flow.join()
        want = [x for n in range(self.sent) for x in (("large", n), n)]
        return all(seen == want for seen in self.workers.taken.call().get().values())

    def streamed(self):
        self.over.set()
        self.flow.join()
        return all(seen == list(range(self.sent)) for seen in self.workers.taken.call().get().values())

    def ready(self, a, b):
        # The one can reach the other.
        return self.workers.slice(hosts=a, procs=0).reach.call_one(self.workers.slice(hosts=b, procs=0)).get()

    def relay(self, a, b, count):
        # Messages from the one to the other; `relayed` tells whether all came.
        other = self.workers.slice(hosts=b, procs=0)
        self.answer = self.workers.slice(hosts=a, procs=0).relay.call_one(other, count)
        self.count = count
        return "on"

    def relayed(self):
        return self.answer.get() == list(range(self.count))

    def ask(self, a, b):
        return self.workers.slice(hosts=a, procs=0).ask.call_one(self.waiters.slice(hosts=b, procs=0)).get()

job = Job(sys.argv[1:])
say("up")
for line in sys.stdin:
    command, *numbers = line.split()
    say(getattr(job, command)(*map(int, numbers)))
"""


class Worker:
    """`monarch worker` on a host."""

    def __init__(self, host: Host, env: dict[str, str], secret: Path) -> None:
        self.host = host
        argv = ["-c", MONARCH, "worker", "--listen", f"tcp://{host.name}:{PORT}", "--secret-file", str(secret)]
        self.process: Process = host.popen(sys.executable, *argv, stdout=subprocess.PIPE, env=env)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("listening at "), line
        self.address = line.split()[-1]


class Client:
    """A script; `say` gives it a command and returns the answer."""

    def __init__(self, process: Process, hosts: list[Host]) -> None:
        self.process = process
        assert self._line() == "up"
        self.pids: dict[str, list[int]] = {}
        for n, host in enumerate(hosts):
            self.pids[host.name] = [int(pid) for pid in self.say("pids_of", n).strip("[]").split(",")]

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def send(self, *words: object) -> None:
        assert self.process.stdin is not None
        print(*words, file=self.process.stdin, flush=True)

    def say(self, *words: object) -> str:
        self.send(*words)
        return self._line()

    def answer(self) -> str:
        return self._line()

    def end(self) -> int:
        """Its exit code, when there is nothing more for it to do."""
        out, _ = self.process.communicate()
        assert out == ""
        return self.process.returncode

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


class Cluster:
    """The first host is the client's, the others have workers. `settings` go into the environment of all."""

    def __init__(self, workers: int, folder: Path, **settings: str) -> None:
        self.folder = folder
        self.secret = folder / "secret"
        self.secret.touch(0o600)
        self.secret.write_bytes(secrets.token_bytes(32))
        self.network = Network(workers + 1)
        self.client_host, *self.hosts = self.network.hosts
        self.env = {**os.environ, "TEST_FOLDER": str(folder), "TEST_SECRET": str(self.secret), **settings}
        self.workers: list[Worker] = []
        self.clients: list[Client] = []

    def client(self, **settings: str) -> Client:
        """A script that has attached to all, the settings in its environment; workers take their settings from it."""
        if not self.workers:
            self.workers = [Worker(host, self.env, self.secret) for host in self.hosts]
        path = self.folder / "script.py"
        path.write_text(textwrap.dedent(PRELUDE))
        process = self.client_host.popen(
            *(sys.executable, "-W", "error", str(path), *(worker.address for worker in self.workers)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**self.env, **settings},
        )
        made = Client(process, self.hosts)
        self.clients.append(made)
        return made

    def ended(self, host: Host, pids: list[int]) -> None:
        """Waits until these processes of the host have ended."""
        code = """
            import os, select, sys
            for pid in map(int, sys.argv[1:]):
                try:
                    handle = os.pidfd_open(pid)
                except ProcessLookupError:
                    continue
                select.select([handle], [], [])
        """
        host.run(sys.executable, "-IS", "-c", textwrap.dedent(code), *map(str, pids))

    def cleanups(self, host: Host, pids: list[int]) -> list[str]:
        """What `__cleanup__` was given in these processes."""
        return [path.read_text() for path in (self.folder / f"cleanup-{host.name}-{pid}" for pid in pids) if path.exists()]

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.network.close()
        for process in (*(client.process for client in self.clients), *(worker.process for worker in self.workers)):
            process.communicate()
            assert process.returncode is not None
