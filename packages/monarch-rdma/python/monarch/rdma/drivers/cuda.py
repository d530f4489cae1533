"""NVIDIA's driver. Everything is done in the primary contexts of the devices, which are those that torch uses."""

from __future__ import annotations

from contextlib import contextmanager
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint64, c_void_p
from typing import TYPE_CHECKING

from monarch.rdma.drivers.driver import Driver

if TYPE_CHECKING:
    from collections.abc import Generator

    from monarch.rdma.drivers.driver import Device, Pointer

# CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
_DMA_BUFFER = 1


class Cuda(Driver):
    LIBRARIES = ("libcuda.so.1",)
    MAKER = "NVIDIA"
    NAMES = {
        "start": "cuInit",
        "count": "cuDeviceGetCount",
        "device": "cuDeviceGet",
        "uuid": "cuDeviceGetUuid",
        "synchronize": "cuCtxSynchronize",
        "stream": "cuStreamCreate",
        "wait": "cuStreamSynchronize",
        "pinned": "cuMemHostAlloc",
        "allocation": "cuMemGetAddressRange_v2",
        "between": "cuMemcpyDtoDAsync_v2",
        "to_host": "cuMemcpyDtoHAsync_v2",
        "to_device": "cuMemcpyHtoDAsync_v2",
        "export": "cuIpcGetMemHandle",
        "open": "cuIpcOpenMemHandle_v2",
        "close": "cuIpcCloseMemHandle",
    }
    OTHERS = {
        "cuGetErrorName": (c_int, c_void_p),
        "cuDevicePrimaryCtxRetain": (c_void_p, c_int),
        "cuCtxPushCurrent_v2": (c_void_p,),
        "cuCtxPopCurrent_v2": (c_void_p,),
    }
    # Functions of later drivers.
    OPTIONAL = {"cuMemGetHandleForAddressRange": (c_void_p, c_uint64, c_size_t, c_int, c_uint64)}

    def __init__(self) -> None:
        self._contexts: dict[Device, c_void_p] = {}
        super().__init__()

    def _error(self, code: int) -> str:
        text = c_char_p()
        self._library.call("cuGetErrorName", code, byref(text))
        return (text.value or b"error").decode()

    @contextmanager
    def on(self, device: Device) -> Generator[None]:
        context = self._contexts.get(device)
        if context is None:
            found, context = c_int(), c_void_p()
            self._do("device", byref(found), device)
            # The context is never released: other code uses it for as long as the process lives.
            self._call("cuDevicePrimaryCtxRetain", byref(context), found)
            self._contexts[device] = context
        self._call("cuCtxPushCurrent_v2", context)
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent_v2", byref(c_void_p()))

    def dma_buffer(self, pointer: Pointer, nbytes: int) -> tuple[int, int]:
        descriptor = c_int(-1)
        self._call("cuMemGetHandleForAddressRange", byref(descriptor), pointer, nbytes, _DMA_BUFFER, 0)
        return descriptor.value, 0
