"""A fabric between the processes of this machine, for `MONARCH_RDMA_PROVIDER`: the kernel copies from memory to memory, as a device would.

Memory of GPUs comes by descriptors, as `fake_gpu/driver.c` gives them, and addresses in it count from 0.

Keys are files of a directory that all processes know, FABRIC: a process with the key of a region reads where it is, and a region that is
closed has no file any more. A file `cut.DEVICE` there cuts a rail: nothing comes back, and after all retries its device reports it.
`slow.DEVICE` holds requests until it is gone. `none.DEVICE` refuses connections, `full.DEVICE` memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import mmap
import os
import random
import tempfile
import threading
from collections.abc import Iterator
from ctypes import addressof
from pathlib import Path
from typing import NamedTuple

from monarch.rdma.verbs.connect_record import RC, QueueRecord
from monarch.rdma.verbs.devices import ETHERNET, Port
from monarch.rdma.verbs.provider import FLUSHED, SUCCESS, Completion

FABRIC = "MONARCH_TEST_FABRIC"
DEVICES = "MONARCH_TEST_DEVICES"
_LOCAL_PROTECTION, _REMOTE_ACCESS, _NO_ANSWER = 4, 10, 12
_libc = ctypes.CDLL(None, use_errno=True)
_numbers = itertools.count(1)


class _Range(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("length", ctypes.c_size_t))


def folder():
    return Path(os.environ[FABRIC])


def _is_of_a_gpu(address):
    """It is a file of the stand-in for a driver."""
    with open("/proc/self/maps") as f:
        for line in f:
            start, end = (int(one, 16) for one in line.split()[0].split("-"))
            if start <= address < end:
                return "MONARCH_FAKE_GPU" in os.environ and os.environ["MONARCH_FAKE_GPU"] in line
    return False


class Region:
    def __init__(self, address, nbytes, read, write, mapped=None):
        """`mapped` is where it is in this process, if addresses do not show that."""
        self.mapped = mapped
        self.key = self.remote_key = random.getrandbits(32)
        self.file = folder() / f"key.{self.key}"
        fresh = folder() / f"new.{self.key}"
        shift = 0 if mapped is None else addressof(mapped) - address
        fresh.write_text(json.dumps([os.getpid(), address, nbytes, read, write, shift]))
        fresh.rename(self.file)

    def close(self):
        self.file.unlink()


class Queue:
    def __init__(self, rail, depth):
        self.rail, self.depth = rail, depth
        self.peer = None
        self.closed = False
        self.requests = []
        # The address has the process, as a device's has its host.
        self.record = QueueRecord(rail.port.device, 1, RC, os.getpid().to_bytes(16, "big"), 0, next(_numbers), 0, 0, 1024, 16)

    def connect(self, remote):
        self.peer = int.from_bytes(remote.gid, "big")

    def post(self, requests):
        assert not self.closed and self.peer is not None and requests[-1].signaled
        with self.rail.changed:
            self.requests.extend(requests)
            self.rail.changed.notify_all()
        return True

    def close(self):
        with self.rail.changed:
            self.closed = True
            self.rail.queues.remove(self)
            # No byte is moved when this returns.
            self.rail.changed.wait_for(lambda: self.rail.moving is not self)

    def move(self, request):
        if (folder() / f"cut.{self.rail.port.device}").exists():
            return _NO_ANSWER
        try:
            pid, address, nbytes, read, write, shift = json.loads((folder() / f"key.{request.remote_key}").read_text())
            mine, start, size, _, _, own_shift = json.loads((folder() / f"key.{request.key}").read_text())
        except OSError:
            return _REMOTE_ACCESS
        if mine != os.getpid() or not (start <= request.address and request.address + request.nbytes <= start + size):
            return _LOCAL_PROTECTION
        inside = address <= request.remote_address and request.remote_address + request.nbytes <= address + nbytes
        if pid != self.peer or not inside or not (write if request.write else read):
            return _REMOTE_ACCESS
        here, there = _Range(request.address + own_shift, request.nbytes), _Range(request.remote_address + shift, request.nbytes)
        copy = _libc.process_vm_writev if request.write else _libc.process_vm_readv
        moved = copy(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
        return SUCCESS if moved == request.nbytes else _NO_ANSWER


class Rail:
    unordered = False

    def __init__(self, port):
        self.port = port
        self.changed = threading.Condition()
        self.queues, self.completions = [], []
        self.moving = None
        self.closing = self.armed = False
        self.event = os.eventfd(0, os.EFD_CLOEXEC)
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            with self.changed:
                self.moving = None
                self.changed.notify_all()
                self.changed.wait_for(lambda: self.closing or any(queue.requests for queue in self.queues))
                if self.closing:
                    return
                self.moving = queue = next(queue for queue in self.queues if queue.requests)
                request = queue.requests[0]
            while (folder() / f"slow.{self.port.device}").exists() and not queue.closed:
                with self.changed:
                    self.moving = None
                    self.changed.notify_all()
                    self.changed.wait(0.01)
            with self.changed:
                if queue.closed:
                    continue
                self.moving = queue
            status = queue.move(request)
            with self.changed:
                if queue.closed:
                    continue
                failed = queue.requests if status != SUCCESS else [request]
                queue.requests = [] if status != SUCCESS else queue.requests[1:]
                for one in failed:
                    if one.signaled or status != SUCCESS:
                        self.completions.append(Completion(one.number, status if one is request else FLUSHED))
                if self.armed and self.completions:
                    self.armed = False
                    os.eventfd_write(self.event, 1)

    def register(self, address, nbytes, *, remote_read=False, remote_write=False):
        if (folder() / f"full.{self.port.device}").exists():
            raise OSError(12, "cannot allocate memory")
        if _is_of_a_gpu(address):
            raise OSError(14, "bad address")
        return Region(address, nbytes, remote_read, remote_write)

    def register_dma_buffer(self, descriptor, offset, nbytes, *, remote_read=False, remote_write=False):
        if (folder() / f"nodma.{self.port.device}").exists():
            raise OSError(95, "not supported")
        # The stand-in for a driver gives the begin of the memory by the position in its file, if not by the offset.
        start = os.lseek(descriptor, 0, os.SEEK_CUR) + offset
        length = min(nbytes, os.fstat(descriptor).st_size - start)
        mapped = (ctypes.c_char * length).from_buffer(mmap.mmap(descriptor, length, offset=start))
        return Region(offset, nbytes, remote_read, remote_write, mapped)

    def queue(self, depth):
        if (folder() / f"none.{self.port.device}").exists():
            raise OSError(f"{self.port.device}: no queue pair")
        with self.changed:
            self.queues.append(Queue(self, depth))
            return self.queues[-1]

    def poll(self, most):
        with self.changed:
            found, self.completions = self.completions[:most], self.completions[most:]
        return found

    def fileno(self):
        return self.event

    def arm(self):
        with self.changed:
            self.armed = True

    def acknowledge(self):
        os.eventfd_read(self.event)

    def close(self):
        with self.changed:
            self.closing = True
            self.changed.notify_all()


class Devices:
    """Those that DEVICES names."""

    def ports(self):
        return [
            Port(name, 1, ETHERNET, True, "ACTIVE", 100e9, b"\1" * 16, 1, "RoCE v2", None, "") for name in os.environ[DEVICES].split(",")
        ]

    def obstacle(self, ports):
        return None

    def open(self, port):
        return Rail(port)


class Fabric(NamedTuple):
    """Devices in name only, between processes of this machine (`process_fabric`); what is in `folder` happens to them."""

    folder: Path

    def devices(self, *names: str) -> dict[str, str]:
        """The environment of a host that has these."""
        return {
            "MONARCH_RDMA_PROVIDER": "process_fabric:Devices",
            FABRIC: str(self.folder),
            DEVICES: ",".join(names),
        }

    def begin(self, what: str, device: str) -> None:
        (self.folder / f"{what}.{device}").touch()

    def end(self, what: str, device: str) -> None:
        (self.folder / f"{what}.{device}").unlink()

    def keys(self) -> int:
        """Registrations, of all processes."""
        return len(list(self.folder.glob("key.*")))


@contextlib.contextmanager
def process_fabric() -> Iterator[Fabric]:
    with tempfile.TemporaryDirectory() as folder:
        yield Fabric(Path(folder))
