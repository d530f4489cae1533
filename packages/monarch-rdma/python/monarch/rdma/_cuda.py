"""NVIDIA's driver, as far as memory of GPUs needs it: loaded on first use, from the machine, without torch or a toolkit.

Everything is done in the primary contexts of the devices, which are those that torch uses. A context is current for a thread only as long
as a `with` of `Driver.on` lasts, so nothing changes for whoever calls.
"""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from ctypes import byref, c_char, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator

_LIBRARY = "libcuda.so.1"
HANDLE_BYTES = 64
UUID_BYTES = 16
# CU_MEMHOSTALLOC_PORTABLE, CU_STREAM_NON_BLOCKING, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
_PORTABLE, _NON_BLOCKING, _PEERS = 1, 1, 1

Device = int
Pointer = int


class _IpcHandle(ctypes.Structure):
    _fields_ = (("reserved", c_char * HANDLE_BYTES),)


class _Uuid(ctypes.Structure):
    _fields_ = (("bytes", c_char * UUID_BYTES),)


# What each is called with; all return a number, 0 if it went well.
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuGetErrorName": (c_int, c_void_p),
    "cuDeviceGetCount": (c_void_p,),
    "cuDeviceGet": (c_void_p, c_int),
    "cuDeviceGetUuid": (c_void_p, c_int),
    "cuDevicePrimaryCtxRetain": (c_void_p, c_int),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (c_void_p,),
    "cuCtxSynchronize": (),
    "cuStreamCreate": (c_void_p, c_uint),
    "cuStreamSynchronize": (c_void_p,),
    "cuMemHostAlloc": (c_void_p, c_size_t, c_uint),
    "cuMemGetAddressRange_v2": (c_void_p, c_void_p, c_uint64),
    "cuMemcpyDtoDAsync_v2": (c_uint64, c_uint64, c_size_t, c_void_p),
    "cuMemcpyDtoHAsync_v2": (c_void_p, c_uint64, c_size_t, c_void_p),
    "cuMemcpyHtoDAsync_v2": (c_uint64, c_void_p, c_size_t, c_void_p),
    "cuIpcGetMemHandle": (c_void_p, c_uint64),
    "cuIpcOpenMemHandle_v2": (c_void_p, _IpcHandle, c_uint),
    "cuIpcCloseMemHandle": (c_uint64,),
}
# Of later drivers: what needs them is not to be had without.
_OPTIONAL: dict[str, tuple[Any, ...]] = {
    "cuMemGetHandleForAddressRange": (c_void_p, c_uint64, c_size_t, c_int, c_uint64),
}
# CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
_DMA_BUFFER = 1


class CudaError(Exception):
    """A call of the driver went wrong; the text has its name and that of the error."""


class Driver:
    def __init__(self) -> None:
        """`CudaError` where there is no driver, or no device that it can use."""
        try:
            library = ctypes.CDLL(_LIBRARY)
        except OSError:
            raise CudaError(f"{_LIBRARY} cannot be loaded: no NVIDIA driver") from None
        self._functions: dict[str, Any] = {}
        for name, types in (*_FUNCTIONS.items(), *_OPTIONAL.items()):
            function = getattr(library, name, None)
            if function is None:
                if name in _OPTIONAL:
                    continue
                raise CudaError(f"{_LIBRARY} has no {name}: the driver is too old")
            function.argtypes, function.restype = types, c_int
            self._functions[name] = function
        self._contexts: dict[Device, c_void_p] = {}
        self._call("cuInit", 0)
        count = c_int()
        self._call("cuDeviceGetCount", byref(count))
        self.count: int = count.value
        if not self.count:
            raise CudaError("the driver shows no device")

    def _call(self, name: str, *arguments: Any) -> None:
        if name not in self._functions:
            raise CudaError(f"{_LIBRARY} has no {name}: the driver is too old")
        code = self._functions[name](*arguments)
        if code:
            text = c_char_p()
            self._functions["cuGetErrorName"](code, byref(text))
            raise CudaError(f"{name}: {(text.value or b'error').decode()} ({code})")

    @contextmanager
    def on(self, device: Device) -> Generator[None]:
        """The primary context of the device is this thread's."""
        context = self._contexts.get(device)
        if context is None:
            found, context = c_int(), c_void_p()
            self._call("cuDeviceGet", byref(found), device)
            # Never given back: others use it for as long as the process lives.
            self._call("cuDevicePrimaryCtxRetain", byref(context), found)
            self._contexts[device] = context
        self._call("cuCtxPushCurrent_v2", context)
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent_v2", byref(c_void_p()))

    def uuid(self, device: Device) -> bytes:
        """What a device is called in every process, whichever it can see."""
        found, uuid = c_int(), _Uuid()
        self._call("cuDeviceGet", byref(found), device)
        self._call("cuDeviceGetUuid", byref(uuid), found)
        return ctypes.string_at(byref(uuid), UUID_BYTES)

    def find(self, uuid: bytes) -> Device | None:
        """The device of that name, if this process can see it."""
        return next((device for device in range(self.count) if self.uuid(device) == uuid), None)

    # The others are called with a context.

    def synchronize(self) -> None:
        """Returns when all work is done that was given to the device."""
        self._call("cuCtxSynchronize")

    def stream(self) -> c_void_p:
        stream = c_void_p()
        self._call("cuStreamCreate", byref(stream), _NON_BLOCKING)
        return stream

    def wait(self, stream: c_void_p) -> None:
        self._call("cuStreamSynchronize", stream)

    def pinned(self, nbytes: int) -> int:
        """The address of memory of the host that devices reach by themselves."""
        address = c_void_p()
        self._call("cuMemHostAlloc", byref(address), nbytes, _PORTABLE)
        return address.value or 0

    def allocation(self, pointer: Pointer) -> tuple[Pointer, int]:
        """Where the allocation begins that this is in, and its bytes."""
        base, nbytes = c_uint64(), c_size_t()
        self._call("cuMemGetAddressRange_v2", byref(base), byref(nbytes), pointer)
        return base.value, nbytes.value

    def to_device(self, target: Pointer, source: int, nbytes: int, stream: c_void_p) -> None:
        self._call("cuMemcpyHtoDAsync_v2", target, source, nbytes, stream)

    def to_host(self, target: int, source: Pointer, nbytes: int, stream: c_void_p) -> None:
        self._call("cuMemcpyDtoHAsync_v2", target, source, nbytes, stream)

    def between(self, target: Pointer, source: Pointer, nbytes: int, stream: c_void_p) -> None:
        self._call("cuMemcpyDtoDAsync_v2", target, source, nbytes, stream)

    def export(self, base: Pointer) -> bytes:
        """What another process opens the allocation with."""
        handle = _IpcHandle()
        self._call("cuIpcGetMemHandle", byref(handle), base)
        return ctypes.string_at(byref(handle), HANDLE_BYTES)

    def open(self, exported: bytes) -> Pointer:
        """An allocation of another process."""
        base = c_uint64()
        self._call("cuIpcOpenMemHandle_v2", byref(base), _IpcHandle.from_buffer_copy(exported), _PEERS)
        return base.value

    def dma_buffer(self, pointer: Pointer, nbytes: int) -> int:
        """A descriptor by which other devices reach this memory: whole pages of the host, in one allocation. To be closed by the caller."""
        descriptor = c_int(-1)
        self._call("cuMemGetHandleForAddressRange", byref(descriptor), pointer, nbytes, _DMA_BUFFER, 0)
        return descriptor.value

    def close(self, base: Pointer) -> None:
        self._call("cuIpcCloseMemHandle", base)


@cache
def _load() -> Driver | str:
    try:
        return Driver()
    except CudaError as e:
        return str(e)


def obstacle() -> str:
    """What is in the way of memory of GPUs; empty if it can be used. Loads the driver, and makes no context."""
    found = _load()
    return found if isinstance(found, str) else ""


def driver() -> Driver:
    """`CudaError` where `obstacle` has something to say."""
    found = _load()
    if isinstance(found, str):
        raise CudaError(found)
    return found
