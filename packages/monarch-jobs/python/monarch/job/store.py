"""The ranks of a torchrun world as hosts: they meet in the store of their rendezvous, such as torch's TCPStore."""

from __future__ import annotations

import atexit
import json
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Protocol

from monarch.extension import python_command
from monarch.job._job.job_state import check_mesh_names
from monarch.job._job.worker_address import published_address
from monarch.job.attach import AttachJob
from monarch.job.errors import JobError, SubmitError

_TRANSPORTS = ("ipc", "tcp")
# Seconds for a worker to listen: an interpreter on a busy machine.
_START_S = 60.0


class Store(Protocol):
    """What is needed of a store: that of `torch.distributed`, or any other with these methods. `get` waits for the key."""

    def set(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> bytes: ...


class StoreJob(AttachJob):
    """Hosts of a torchrun world, which `from_store` makes of its ranks. `kill` leaves the agents to the ranks that have started them."""

    __module__ = "monarch.job.spmd"
    kind = "store"
    secret_: bytes | None = None
    # The worker of this rank, as long as its process lives.
    worker_: subprocess.Popen[bytes] | None = None

    @staticmethod
    def from_store(
        store: Store,
        *,
        monarch_port: int = 0,
        name: str = "monarch_worker",
        transport: str = "ipc",
        rank: int | None = None,
        local_rank: int | None = None,
        world_size: int | None = None,
        local_world_size: int | None = None,
    ) -> StoreJob | None:
        """Called by all ranks of a world: local rank 0 of each host starts an agent, rank 0 gets the job, all others None.

        Numbers that are not given are those of the environment (`RANK`, `LOCAL_RANK`, `WORLD_SIZE`, `LOCAL_WORLD_SIZE`). The job has one
        mesh, `name`. `transport` is `ipc` where all ranks are on one machine, else `tcp`; `monarch_port` 0 is any free port. An agent ends
        with its rank. The secret of the agents goes through the store, whose access is that of the store. `ValueError` names a wrong
        argument, `RuntimeError` a variable that is missing, as outside of torchrun, `SubmitError` the host whose agent does not start.
        """
        number = _number("rank", rank, "RANK")
        size = _number("world_size", world_size, "WORLD_SIZE")
        local = _number("local_rank", local_rank, "LOCAL_RANK")
        local_size = _number("local_world_size", local_world_size, "LOCAL_WORLD_SIZE")
        if transport not in _TRANSPORTS:
            raise ValueError(f"transport={transport!r}: expected {' or '.join(_TRANSPORTS)}")
        if not (0 <= number < size and 0 <= local < local_size <= size):
            raise ValueError(f"rank {number} of {size}, local rank {local} of {local_size}: that is no place in a world")
        if size % local_size:
            raise ValueError(f"world_size {size} is not divisible by local_world_size {local_size}")
        if not 0 <= monarch_port <= 65535:
            raise ValueError(f"monarch_port={monarch_port}: expected a number from 0 to 65535")
        check_mesh_names([name])
        prefix = f"monarch/{name}"
        if number == 0:
            store.set(f"{prefix}/secret", secrets.token_hex(32))
        worker: subprocess.Popen[bytes] | None = None
        if local == 0:
            place = f"{prefix}/agent/{number // local_size}"
            try:
                worker, address = _start(bytes.fromhex(store.get(f"{prefix}/secret").decode()), transport, monarch_port)
            except BaseException as error:
                # Rank 0 waits for this.
                store.set(place, _published(error=str(error)))
                raise
            store.set(place, _published(address=address))
            _workers.append(worker)
        if number != 0:
            return None
        return _made(store, prefix, name, size // local_size, worker)

    def _secret(self) -> bytes | None:
        if self.secret_ is None:
            raise JobError("its secret was that of the process that has made it", title=self._title, hint="call from_store again")
        return self.secret_


# Agents that this process has started: a worker is not reaped, and gives no warning, before the process ends.
_workers: list[subprocess.Popen[bytes]] = []


def _made(store: Store, prefix: str, name: str, hosts: int, worker: subprocess.Popen[bytes] | None) -> StoreJob:
    found = [json.loads(store.get(f"{prefix}/agent/{number}")) for number in range(hosts)]
    failed = [f"host {number}: {one['error']}" for number, one in enumerate(found) if one["error"] is not None]
    if failed:
        raise SubmitError("; ".join(failed), title="store job")
    job = StoreJob({name: [one["address"] for one in found]})
    job.secret_ = bytes.fromhex(store.get(f"{prefix}/secret").decode())
    job.worker_ = worker
    # All agents have read the secret.
    delete = getattr(store, "delete_key", None)
    if delete is not None:
        delete(f"{prefix}/secret")
    return job


def _published(*, address: str | None = None, error: str | None = None) -> str:
    """What rank 0 gets from the first rank of a host: the address of its agent, or the error of its start."""
    return json.dumps({"address": address, "error": error})


def _number(argument: str, value: int | None, variable: str) -> int:
    if value is not None:
        return value
    text = os.environ.get(variable)
    if text is None:
        raise RuntimeError(f"{variable} is not set, and {argument} is not given\nhint: torchrun sets it for its programs")
    if not text.isdecimal():
        raise ValueError(f"{variable}={text!r} is no number, and {argument} is not given")
    return int(text)


def _start(secret: bytes, transport: str, port: int) -> tuple[subprocess.Popen[bytes], str]:
    """An agent and its address, as other hosts reach it."""
    folder = tempfile.mkdtemp(prefix="monarch-store-")
    published = Path(folder, "address.json")
    listen = f"ipc://{folder}/socket" if transport == "ipc" else f"tcp://{_own_address()}:{port}"
    read, write = os.pipe()
    try:
        with open(write, "wb") as file:
            file.write(secret)
        argv = python_command("monarch.job._machine.bound_worker", str(os.getpid()), "worker", "--listen", listen)
        argv += ["--publish", str(published), "--secret-file", f"/dev/fd/{read}"]
        with Path(folder, "log").open("wb") as log:
            worker = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(read,), start_new_session=True)
    finally:
        os.close(read)
    atexit.register(_remove, folder, os.getpid())
    try:
        return worker, _address_of(worker, published)
    except BaseException:
        worker.kill()
        worker.wait()
        raise
    finally:
        published.unlink(missing_ok=True)


def _remove(folder: str, pid: int) -> None:
    """At the exit of the process that has made it, not of its forks."""
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)


def _address_of(worker: subprocess.Popen[bytes], published: Path) -> str:
    end = time.monotonic() + _START_S
    # polls: the worker writes a file.
    while worker.poll() is None and time.monotonic() < end:
        if published.exists() and (address := published_address(published.read_text(), worker.pid)) is not None:
            return address
        time.sleep(0.01)
    words = (published.parent / "log").read_text(errors="replace").strip().splitlines()
    why = f"ended with exit code {worker.returncode}" if worker.poll() is not None else f"does not listen after {_START_S:g} s"
    raise SubmitError(f"the agent {why}" + (f": {words[-1]}" if words else ""), title="store job")


def _own_address() -> str:
    """The address at which other hosts reach this one, as the ranks of torchrun meet: IPv4 first."""
    from monarch.spmd.address import reachable_address

    return reachable_address()
