"""Hosts of a chaos run: workers of this machine with a proxy in front of each, in a process of their own, beside the script.

    python bench/chaos_hosts.py COUNT CONTROL LOG

Prints the addresses of the proxies, and the credentials for a client, as one JSON line. A line `COMMAND NUMBER` on the socket with the
descriptor `CONTROL` disturbs the connections of one: `finish`, `finish_near`, `finish_far` and `reset` of `ConnectionProxy`, answered by a
line. The log of the workers goes to the file LOG. The end of the standard input ends all.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "packages" / "monarch-core" / "tests" / "process")]

CUTS = ("finish", "finish_near", "finish_far", "reset")


class ChaosHosts:
    """The process, for the process that starts a run; `option` and `control` are for the script."""

    def __init__(self, count: int, log: Path) -> None:
        self.control, end = socket.socketpair()
        argv = [sys.executable, __file__, str(count), str(end.fileno()), str(log)]
        with end:
            self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=[end.fileno()])
        assert self.process.stdout is not None
        self.option = json.dumps([self.control.fileno(), *json.loads(self.process.stdout.readline())])

    def close(self) -> None:
        self.control.close()
        self.process.communicate()


class HostCuts:
    """The hosts, for the script, given by its option `--hosts`."""

    def __init__(self, option: str) -> None:
        descriptor, self.addresses, self.trust = json.loads(option)
        self.count = len(self.addresses)
        self._control = socket.socket(fileno=descriptor)
        self._control.set_inheritable(False)

    def attach(self) -> Any:
        from monarch.actor import attach_to_workers

        hosts = attach_to_workers(workers=self.addresses, **self.trust)
        hosts.initialized.get()
        return hosts

    def cut(self, kind: str, number: int) -> None:
        self._control.sendall(f"{kind} {number}\n".encode())
        assert self._control.recv(1) == b"."


def main() -> int:
    from connection_proxy import ConnectionProxy
    from worker_processes import Workers

    control = socket.socket(fileno=int(sys.argv[2]))
    control.set_inheritable(False)
    logging = {**os.environ, "MONARCH_LOG": "warn,host=info"}
    with (
        open(sys.argv[3], "w") as log,
        Workers(int(sys.argv[1]), "tls", stderr=log, env=logging) as workers,
        contextlib.ExitStack() as stack,
    ):
        proxies = [stack.enter_context(ConnectionProxy(address)) for address in workers.addresses]

        def obey() -> None:
            with control, control.makefile("r") as lines, contextlib.suppress(OSError):
                for line in lines:
                    kind, number = line.split()
                    getattr(proxies[int(number)], kind)()
                    control.sendall(b".")

        threading.Thread(target=obey, daemon=True).start()
        print(json.dumps([[proxy.address for proxy in proxies], workers.trust()]), flush=True)
        sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
