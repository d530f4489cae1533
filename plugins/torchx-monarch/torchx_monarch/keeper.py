"""The process that keeps an application: a client of the hosts, on which it runs the replicas. Its arguments: APP_ID LOCK ATTEMPT.

Each replica is a command of `exec_command`. Commands end with their client: the exit handlers of Monarch end the running ones, and hosts
end those of a killed client. So an exit handler that runs after those of Monarch writes the outcome, and each attempt of the application
is a new program in this process.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from monarch.actor import ChannelAddr, HostMesh, attach_to_workers
from monarch.extension import python_command
from monarch.job import attach_current_job, exec_command
from torchx_monarch.application import Application, end_replicas, tail


class _ReplicaFailed(Exception):
    def __init__(self, role: dict[str, Any], message: str) -> None:
        super().__init__(message)
        self.role = role


class Keeper:
    """One attempt of an application."""

    def __init__(self, app: Application, lock: int, attempt: int) -> None:
        self.app = app
        self.lock = lock
        self.attempt = attempt
        self.request = app.read("request.json")
        self.replicas = {role["name"]: [["PENDING", ""] for _ in role["replicas"]] for role in self.request["roles"]}
        self.outcome = ("FAILED", "")
        self.is_repeated = False

    def attach(self) -> tuple[HostMesh, list[str]]:
        """The hosts and their names for each other."""
        if self.request["workers"]:
            addresses: list[str | None] = self.request["workers"]
            hosts = attach_to_workers(workers=addresses, secret=self.request["secret_file"])
        else:
            job, state = attach_current_job()
            mesh = self.request["mesh"] or next(iter(state))
            hosts = state[mesh]
            found = sorted((host for host in job.status().hosts if host.mesh == mesh), key=lambda host: host.rank)
            addresses = [host.address for host in found]
        names = [(ChannelAddr(address).host if address else None) or "localhost" for address in addresses]
        names += ["localhost"] * (len(hosts) - len(names))
        count = sum(map(len, self.replicas.values()))
        if count > len(hosts):
            raise ValueError(f"the application has {count} replicas, and there are {len(hosts)} hosts: each replica needs a host")
        return hosts, names

    async def run(self) -> None:
        """Ends with the last replica, or with the first failure."""
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        hosts, names = self.attach()
        first = 0
        async with asyncio.TaskGroup() as group:
            for role in self.request["roles"]:
                for k in range(len(role["replicas"])):
                    self.replicas[role["name"]][k][1] = names[first + k]
                    group.create_task(self.replica(hosts, first + k, role, k, names[first]))
                first += len(role["replicas"])

    async def replica(self, hosts: HostMesh, rank: int, role: dict[str, Any], k: int, rank0: str) -> None:
        argv, env = role["replicas"][k]
        logs = os.path.join(self.request["log_dir"], role["name"], str(k))
        given = {"TORCHX_RANK0_HOST": rank0, "TORCHELASTIC_ERROR_FILE": os.path.join(logs, "error.json"), **env}
        Path(logs, "error.json").unlink(missing_ok=True)  # that of an earlier attempt
        self.report(role, k, "RUNNING")
        try:
            code = await exec_command(hosts, argv, env=given, workdir=role["workdir"], output_dir=logs, rank=rank)
            message = f"exit code {code}\n{tail(Path(logs, 'stderr.txt'))}".strip() if code else ""
        except Exception as e:
            message = str(e) or type(e).__name__
        self.report(role, k, "FAILED" if message else "SUCCEEDED")
        if message:
            raise _ReplicaFailed(role, f"{role['name']}/{k} on {self.replicas[role['name']][k][1]}: {message}")

    def report(self, role: dict[str, Any], k: int, state: str) -> None:
        self.replicas[role["name"]][k][0] = state
        self.write("RUNNING", "")

    def write(self, state: str, message: str) -> None:
        self.app.write("state.json", {"state": state, "message": message, "attempt": self.attempt, "replicas": self.replicas})

    def main(self) -> None:
        # The first exit handler is the last one that runs: the commands have ended.
        atexit.register(self.end)
        try:
            asyncio.run(self.run())
            self.outcome = ("SUCCEEDED", "")
        except asyncio.CancelledError:
            self.outcome = ("CANCELLED", "")
        except ExceptionGroup as e:
            failed = e.exceptions[0]
            self.outcome = ("FAILED", str(failed))
            self.is_repeated = isinstance(failed, _ReplicaFailed) and self.attempt < failed.role["max_retries"]
        except Exception as e:
            self.outcome = ("FAILED", f"{type(e).__name__}: {e}")

    def end(self) -> None:
        if self.is_repeated and not self.app.is_cancelled:
            os.set_inheritable(self.lock, True)
            command = python_command("torchx_monarch.keeper", self.app.id, str(self.lock), str(self.attempt + 1))
            os.execv(command[0], command)
        end_replicas(self.replicas)
        self.write(*self.outcome)


def main() -> None:
    app_id, lock, attempt = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    os.set_inheritable(lock, False)
    app = Application(app_id)
    os.pwrite(lock, json.dumps({"machine": socket.gethostname(), "pid": os.getpid()}).encode(), 0)
    if not app.is_cancelled:
        Keeper(app, lock, attempt).main()


if __name__ == "__main__":
    main()
