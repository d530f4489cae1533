"""Owners and readers of memory of GPUs: with torch and a GPU, or with what stands for both (`fake_gpu`)."""

from __future__ import annotations

import gc
import os
import warnings

from memory_actors import outcome, pattern

from monarch.actor import Actor, endpoint
from monarch.rdma import RDMAAction, RDMABuffer, RDMABufferSet, RDMATcpFallbackWarning
from monarch.rdma._process.process import this_process


def tensor(data, device="cuda:0"):
    import torch

    return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)


def zeros(nbytes, device="cuda:0"):
    import torch

    return torch.zeros(nbytes, dtype=torch.uint8, device=device)


def content(held):
    if isinstance(held, memoryview):
        return bytes(held)
    return bytes(held.cpu().numpy())


def memory(nbytes, device):
    """On a GPU, or `host`."""
    return memoryview(bytearray(nbytes)) if device == "host" else zeros(nbytes, device)


class Owner(Actor):
    def __init__(self, **variables):
        os.environ.update(variables)
        self.held = []
        self.buffers = []
        self.warnings = []

    @endpoint
    def share(self, nbytes, seed=1, device="cuda:0", **options):
        data = pattern(nbytes, seed)
        self.held.append(memoryview(bytearray(data)) if device == "host" else tensor(data, device))
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            self.buffers.append(RDMABuffer(self.held[-1], **options))
        self.warnings += [str(warning.message) for warning in seen]
        return self.buffers[-1]

    @endpoint
    def warned(self):
        return self.warnings

    @endpoint
    def share_set(self, sizes, device="cuda:0"):
        """Every third is on the host."""
        made = {}
        for i, (key, nbytes) in enumerate(sizes.items()):
            made[key] = memory(nbytes, "host") if i % 3 == 2 else tensor(pattern(nbytes, i), device)
        self.held.append(made)
        self.buffers.append(RDMABufferSet(made))
        return self.buffers[-1]

    @endpoint
    def content(self, index=-1, key=None):
        held = self.held[index]
        return content(held if key is None else held[key])

    @endpoint
    def read_own(self, device):
        """Of the last one, in this process."""
        got = memory(self.buffers[-1].size(), device)
        self.buffers[-1].read_into(got).get()
        return self.buffers[-1].path, content(got)

    @endpoint
    def forget_the_tensor(self):
        self.held.clear()
        gc.collect()

    @endpoint
    def drop(self, index=-1):
        self.buffers[index].drop().get()

    @endpoint
    def counts(self):
        gc.collect()
        return this_process().bulk.counts()

    @endpoint
    def pid(self):
        return os.getpid()


class Both(Owner):
    """Owns memory, and reads that of another one."""

    @endpoint
    def read_often(self, buffer, times):
        got = zeros(buffer.size())
        for _ in range(times):
            buffer.read_into(got).get()
        return content(got)


class Reader(Actor):
    def __init__(self, **variables):
        os.environ.update(variables)
        # The warning does not matter here, and tests check standard error.
        warnings.simplefilter("ignore", RDMATcpFallbackWarning)
        self.kept = []

    @endpoint
    def path(self, buffer):
        return buffer.path

    @endpoint
    def path_error(self, buffer):
        try:
            return buffer.path
        except Exception as e:
            return type(e).__name__, str(e)

    @endpoint
    def read(self, buffer, device="cuda:0", offset=0):
        got = memory(buffer.size(), device)
        buffer.read_into(got, offset=offset).get()
        return content(got)

    @endpoint
    def read_outcome(self, buffer, device="cuda:0", **options):
        return outcome(buffer.read_into(memory(buffer.size(), device), **options))

    @endpoint
    def read_until_it_fails(self, buffer, port):
        got, failed, reads = memory(buffer.size(), "cuda:0"), None, 0
        while failed is None:
            failed = outcome(buffer.read_into(got))
            reads += 1
            if reads == 1:
                port.send(failed)
        return failed

    @endpoint
    def write(self, buffer, data, device="cuda:0", offset=0):
        source = memoryview(data) if device == "host" else tensor(data, device)
        buffer.write_from(source, offset=offset).get()

    @endpoint
    def write_outcome(self, buffer, data):
        return outcome(buffer.write_from(tensor(data)))

    @endpoint
    def raising(self, what, buffer):
        calls = {
            "write": lambda: buffer.write_from(zeros(1)),
            "map": buffer.map,
            "add": lambda: RDMAAction().fetch_add(buffer, memoryview(bytearray(8)), 1),
            "add into a GPU": lambda: RDMAAction().fetch_add(buffer, zeros(8), 1),
        }
        try:
            calls[what]()
        except Exception as e:
            return type(e).__name__, str(e)
        return None

    @endpoint
    def parts(self, buffer, cuts, readonly=True):
        return [content_of(buffer.restrict(offset=start, length=length, readonly=readonly)) for start, length in cuts]

    @endpoint
    def batch(self, buffers, data, port, value):
        """Reads the first two, to GPU and host; writes to the third; twice, then reports."""
        onto_gpu, onto_host = zeros(buffers[0].size()), memoryview(bytearray(buffers[1].size()))
        action = RDMAAction().read_remote(onto_gpu, buffers[0]).read_remote(onto_host, buffers[1])
        plan = action.write_remote(buffers[2], tensor(data)).prepare()
        plan.submit().get()
        failed = outcome(plan.submit(notify=(port, value)))
        return failed, content(onto_gpu), content(onto_host)

    @endpoint
    def read_set(self, buffers, device):
        local = {key: memory(buffers.spec(key)[1][0], "host" if buffers.spec(key)[0] == "B" else device) for key in buffers.keys()}
        plan = buffers.plan_read(local)
        plan.submit().get()
        plan.submit().get()
        return {key: content(value) for key, value in local.items()}

    @endpoint
    def keep(self, buffers):
        self.kept += [buffers, [buffer.path for buffer in buffers]]

    @endpoint
    def read_kept(self):
        return [content_of(buffer) for buffer in self.kept[0]]

    @endpoint
    def forget(self):
        self.kept.clear()

    @endpoint
    def settled_imports(self, wanted):
        from monarch.rdma._gpu.device_handle import imports

        while imports() != wanted:
            gc.collect()
        return True


def content_of(buffer):
    got = zeros(buffer.size())
    buffer.read_into(got).get()
    return content(got)
