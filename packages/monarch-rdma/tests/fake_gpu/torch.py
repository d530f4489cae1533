"""As much of torch as the scenarios of GPUs need, over the driver beside this file: flat tensors of bytes.

As in torch, tensors are cut from allocations that they share. Memory without a reference is overwritten.
"""

from __future__ import annotations

import ctypes
import os
from typing import NamedTuple

_SEGMENT, _ALIGNMENT = 32 << 20, 512
uint8 = "torch.uint8"
strided = "torch.strided"


class device(NamedTuple):
    type: str
    index: int | None = None

    def __str__(self):
        return self.type if self.index is None else f"{self.type}:{self.index}"


def _device(name):
    kind, _, index = str(name).partition(":")
    return device(kind, int(index or 0) if kind == "cuda" else None)


class version:
    """MONARCH_FAKE_MAKER is the maker of the GPUs that it was built for."""

    hip = "6.2" if os.environ.get("MONARCH_FAKE_MAKER") == "AMD" else None
    cuda = None if hip else "12.6"


class _Segments:
    """Allocations of a device, in which there is room."""

    def __init__(self):
        self.driver = None
        self.open = {}

    def take(self, index, nbytes):
        if self.driver is None:
            self.driver = ctypes.CDLL("libamdhip64.so.6" if version.hip else "libcuda.so.1")
            (self.driver.hipInit if version.hip else self.driver.cuInit)(0)
        if nbytes > _SEGMENT:
            return self.allocate(index, nbytes)
        base, used = self.open.get(index, (0, _SEGMENT))
        if used + nbytes > _SEGMENT:
            base, used = self.allocate(index, _SEGMENT), 0
        self.open[index] = base, used + -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        return base + used

    def allocate(self, index, nbytes):
        context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
        if version.hip:
            assert self.driver.hipSetDevice(index) == 0
            assert self.driver.hipMalloc(ctypes.byref(pointer), ctypes.c_size_t(nbytes)) == 0
            return pointer.value
        self.driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), index)
        self.driver.cuCtxPushCurrent_v2(context)
        assert self.driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(nbytes)) == 0
        self.driver.cuCtxPopCurrent_v2(ctypes.byref(context))
        return pointer.value


_segments = _Segments()


class _Storage:
    def __init__(self, where, nbytes):
        self.nbytes = nbytes
        self.host = bytearray(nbytes) if where.type == "cpu" else None
        if self.host is None:
            self.address = _segments.take(where.index, nbytes)
        else:
            self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.host))

    def __del__(self):
        ctypes.memset(self.address, 0xDD, self.nbytes)


class Tensor:
    dtype = uint8
    layout = strided

    def __init__(self, storage, where, start, count):
        self.storage, self.device, self.start, self.count = storage, where, start, count
        self.shape = (count,)

    def data_ptr(self):
        return self.storage.address + self.start

    def numel(self):
        return self.count

    def element_size(self):
        return 1

    def dim(self):
        return 1

    def stride(self):
        return (1,)

    def is_contiguous(self):
        return True

    def is_conj(self):
        return False

    is_neg = is_conj

    def __getitem__(self, part):
        start, stop, step = part.indices(self.count)
        assert step == 1
        return Tensor(self.storage, self.device, self.start + start, stop - start)

    def to(self, where):
        made = zeros(self.count, device=where)
        ctypes.memmove(made.data_ptr(), self.data_ptr(), self.count)
        return made

    def cpu(self):
        return self.to("cpu")

    def numpy(self):
        return bytearray(ctypes.string_at(self.data_ptr(), self.count))


def zeros(count, dtype=uint8, device="cpu"):
    where = _device(device)
    made = Tensor(_Storage(where, count), where, 0, count)
    ctypes.memset(made.data_ptr(), 0, count)
    return made


def frombuffer(data, dtype=uint8):
    made = zeros(len(data))
    ctypes.memmove(made.data_ptr(), bytes(data), len(data))
    return made
