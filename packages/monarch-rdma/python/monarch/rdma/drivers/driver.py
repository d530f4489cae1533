"""The functions of a driver for memory of GPUs. A driver is a library of the machine: neither torch nor a toolkit is needed."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from ctypes import byref, c_char, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import TYPE_CHECKING, Any, ClassVar

from monarch.rdma.drivers.library import DriverError, Library

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from monarch.rdma.drivers.library import Signature

HANDLE_BYTES = 64
UUID_BYTES = 16
# Flags: memory of the host, usable by all devices; streams that do not wait for the default one; allocations of other processes, which GPUs
# besides their own may be enabled to access.
_PORTABLE, _NON_BLOCKING, _PEERS = 1, 1, 1

Device = int
Pointer = int


class _IpcHandle(ctypes.Structure):
    _fields_ = (("reserved", c_char * HANDLE_BYTES),)


class _Uuid(ctypes.Structure):
    _fields_ = (("bytes", c_char * UUID_BYTES),)


# Functions that all drivers have under some name.
_FUNCTIONS: dict[str, Signature] = {
    "start": (c_uint,),
    "count": (c_void_p,),
    "device": (c_void_p, c_int),
    "uuid": (c_void_p, c_int),
    "synchronize": (),
    "stream": (c_void_p, c_uint),
    "wait": (c_void_p,),
    "pinned": (c_void_p, c_size_t, c_uint),
    "allocation": (c_void_p, c_void_p, c_uint64),
    "between": (c_uint64, c_uint64, c_size_t, c_void_p),
    "to_host": (c_void_p, c_uint64, c_size_t, c_void_p),
    "to_device": (c_uint64, c_void_p, c_size_t, c_void_p),
    "export": (c_void_p, c_uint64),
    "open": (c_void_p, _IpcHandle, c_uint),
    "close": (c_uint64,),
}


class Driver(ABC):
    """Of the GPUs of one maker. Devices are numbers, as torch has them."""

    # The names of the library, and its names for the functions above.
    LIBRARIES: ClassVar[Sequence[str]]
    MAKER: ClassVar[str]
    NAMES: ClassVar[Mapping[str, str]]
    # Functions that only this driver has; and those that it may have.
    OTHERS: ClassVar[Mapping[str, Signature]] = {}
    OPTIONAL: ClassVar[Mapping[str, Signature]] = {}

    def __init__(self) -> None:
        """`DriverError` where there is no driver, or no device that it can use."""
        functions = {self.NAMES[key]: types for key, types in _FUNCTIONS.items()} | dict(self.OTHERS)
        self._library = Library(self.LIBRARIES, self.MAKER, functions, self.OPTIONAL)
        count = c_int()
        self._do("start", 0)
        self._do("count", byref(count))
        self.count: int = count.value
        if not self.count:
            raise DriverError("the driver shows no device")

    @abstractmethod
    def _error(self, code: int) -> str:
        """Its name."""

    @abstractmethod
    def on(self, device: Device) -> AbstractContextManager[None]:
        """The device is this thread's. As long as a `with` of it lasts, so nothing changes for the caller."""

    @abstractmethod
    def dma_buffer(self, pointer: Pointer, nbytes: int) -> tuple[int, int]:
        """A descriptor by which other devices reach this memory: whole pages of the host, in one allocation. To be closed by the caller.

        And where in it the memory begins.
        """

    def _call(self, name: str, *arguments: Any) -> None:
        code = self._library.call(name, *arguments)
        if code:
            raise DriverError(f"{name}: {self._error(code)} ({code})")

    def _do(self, key: str, *arguments: Any) -> None:
        self._call(self.NAMES[key], *arguments)

    def uuid(self, device: Device) -> bytes:
        """The name of a device in every process, whichever devices the process sees."""
        found, uuid = c_int(), _Uuid()
        self._do("device", byref(found), device)
        self._do("uuid", byref(uuid), found)
        return ctypes.string_at(byref(uuid), UUID_BYTES)

    def find(self, uuid: bytes) -> Device | None:
        """The device of that name, if this process can see it; `DriverError` if several have it, as where a GPU has none of its own."""
        found = [device for device in range(self.count) if self.uuid(device) == uuid]
        if len(found) > 1:
            raise DriverError(f"the GPUs {', '.join(map(str, found))} cannot be told apart: the driver calls them all {uuid.hex()}")
        return found[0] if found else None

    # These functions are called on a device.

    def synchronize(self) -> None:
        """Returns when all work is done that was given to the device."""
        self._do("synchronize")

    def stream(self) -> c_void_p:
        stream = c_void_p()
        self._do("stream", byref(stream), _NON_BLOCKING)
        return stream

    def wait(self, stream: c_void_p) -> None:
        self._do("wait", stream)

    def pinned(self, nbytes: int) -> int:
        """The address of memory of the host that devices reach by themselves."""
        address = c_void_p()
        self._do("pinned", byref(address), nbytes, _PORTABLE)
        return address.value or 0

    def allocation(self, pointer: Pointer) -> tuple[Pointer, int]:
        """Where the allocation begins that this is in, and its bytes."""
        base, nbytes = c_uint64(), c_size_t()
        self._do("allocation", byref(base), byref(nbytes), pointer)
        return base.value, nbytes.value

    def to_device(self, target: Pointer, source: int, nbytes: int, stream: c_void_p) -> None:
        self._do("to_device", target, source, nbytes, stream)

    def to_host(self, target: int, source: Pointer, nbytes: int, stream: c_void_p) -> None:
        self._do("to_host", target, source, nbytes, stream)

    def between(self, target: Pointer, source: Pointer, nbytes: int, stream: c_void_p) -> None:
        self._do("between", target, source, nbytes, stream)

    def export(self, base: Pointer) -> bytes:
        """What another process opens the allocation with."""
        handle = _IpcHandle()
        self._do("export", byref(handle), base)
        return ctypes.string_at(byref(handle), HANDLE_BYTES)

    def open(self, exported: bytes) -> Pointer:
        """An allocation of another process."""
        base = c_uint64()
        self._do("open", byref(base), _IpcHandle.from_buffer_copy(exported), _PEERS)
        return base.value

    def close(self, base: Pointer) -> None:
        self._do("close", base)
