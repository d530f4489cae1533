"""AMD's driver: HIP, which torch uses as well, and the runtime below it, HSA, which exports memory for other devices."""

from __future__ import annotations

from contextlib import contextmanager
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p
from functools import cached_property
from typing import TYPE_CHECKING

from monarch.rdma.drivers.driver import Driver
from monarch.rdma.drivers.library import DriverError, Library

if TYPE_CHECKING:
    from collections.abc import Generator

    from monarch.rdma.drivers.driver import Device, Pointer

_HSA = ("libhsa-runtime64.so.1", "libhsa-runtime64.so")
_EXPORT = "hsa_amd_portable_export_dmabuf"


class Hip(Driver):
    # The numbers are those of ROCm.
    LIBRARIES = ("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so")
    MAKER = "AMD"
    NAMES = {
        "start": "hipInit",
        "count": "hipGetDeviceCount",
        "device": "hipDeviceGet",
        "uuid": "hipDeviceGetUuid",
        "synchronize": "hipDeviceSynchronize",
        "stream": "hipStreamCreateWithFlags",
        "wait": "hipStreamSynchronize",
        "pinned": "hipHostMalloc",
        "allocation": "hipMemGetAddressRange",
        "between": "hipMemcpyDtoDAsync",
        "to_host": "hipMemcpyDtoHAsync",
        "to_device": "hipMemcpyHtoDAsync",
        "export": "hipIpcGetMemHandle",
        "open": "hipIpcOpenMemHandle",
        "close": "hipIpcCloseMemHandle",
    }
    OTHERS = {"hipGetDevice": (c_void_p,), "hipSetDevice": (c_int,)}

    def _error(self, code: int) -> str:
        return self._library.text("hipGetErrorName", code)

    @contextmanager
    def on(self, device: Device) -> Generator[None]:
        before = c_int()
        self._call("hipGetDevice", byref(before))
        self._call("hipSetDevice", device)
        try:
            yield
        finally:
            self._call("hipSetDevice", before)

    @cached_property
    def _hsa(self) -> Library:
        # HIP has started HSA; this start is counted, so that it is not stopped before the process ends.
        library = Library(_HSA, "AMD", {"hsa_init": ()}, {_EXPORT: (c_void_p, c_size_t, c_void_p, c_void_p)})
        if code := library.call("hsa_init"):
            raise DriverError(f"hsa_init: error {code:#x}")
        return library

    def dma_buffer(self, pointer: Pointer, nbytes: int) -> tuple[int, int]:
        # The descriptor is for the whole allocation.
        descriptor, offset = c_int(-1), c_uint64()
        if code := self._hsa.call(_EXPORT, pointer, nbytes, byref(descriptor), byref(offset)):
            raise DriverError(f"{_EXPORT}: error {code:#x}")
        return descriptor.value, offset.value
