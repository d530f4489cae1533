"""Hosts in network namespaces with a worker each, and client scripts on a host of their own that run the commands of a test."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import TracebackType

from tools.netns.host import Flow, Host
from tools.netns.network import Network
from tools.netns.process import Process

PORT = 22222
MONARCH = "from monarch.extension.cli import main; main()"


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
        """Ends the script, and returns its exit code."""
        out, _ = self.process.communicate()
        assert out == ""
        return self.process.returncode

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


class Cluster:
    """Hosts: the first one is the client's, the others have workers.

    Clients run `script`: it answers each line by one, and prints `up` when it is ready. `settings` go into the environment of all.
    """

    def __init__(self, workers: int, folder: Path, script: str, **settings: str) -> None:
        self.folder = folder
        self.script = script
        self.secret = folder / "secret"
        self.secret.touch(0o600)
        self.secret.write_bytes(secrets.token_bytes(32))
        self.network = Network(workers + 1)
        self.client_host, *self.hosts = self.network.hosts
        self.env = {**os.environ, "TEST_FOLDER": str(folder), "TEST_SECRET": str(self.secret), **settings}
        self.workers: list[Worker] = []
        self.clients: list[Client] = []

    def client(self, **settings: str) -> Client:
        """A script that has attached to all workers, with the settings in its environment; workers take their settings from it."""
        if not self.workers:
            self.workers = [Worker(host, self.env, self.secret) for host in self.hosts]
        path = self.folder / "script.py"
        path.write_text(textwrap.dedent(self.script))
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

    def streams(self, n: int) -> list[Flow]:
        """The connections of the procs of a host to other hosts, once there are some."""
        while True:
            if found := self.hosts[n].flows(besides=self.workers[n].process.target):
                return found
            time.sleep(0.005)  # sleeps: another process opens them

    def half_open(self, n: int, flows: list[Flow], *, from_client: bool = False) -> None:
        """Destroys one end of connections of a host while the host is cut off; the other ends have nothing to send when it is back."""
        self.hosts[n].cut()
        time.sleep(0.5)  # sleeps: so long until all that was under way has been received and acknowledged
        if from_client:
            self.client_host.destroy([Flow(flow.peer, flow.local) for flow in flows])
        else:
            self.hosts[n].destroy(flows)
        self.hosts[n].heal()

    def cleanups(self, host: Host, pids: list[int]) -> list[str]:
        """The arguments of `__cleanup__` in these processes."""
        return [path.read_text() for path in (self.folder / f"cleanup-{host.name}-{pid}" for pid in pids) if path.exists()]

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.network.close()
        for process in (*(client.process for client in self.clients), *(worker.process for worker in self.workers)):
            process.communicate()
            assert process.returncode is not None
