"""What two processes send each other before one can reach the memory of the other: where a queue pair is, and where memory is.

Both are packed into bytes of a fixed layout, little-endian, so that their carrier need not understand them, and nothing is
unpickled. They hold keys of memory: they go over the authenticated control plane only.
"""

from __future__ import annotations

from struct import Struct, error
from typing import NamedTuple

_VERSION = 1
_NAME = 64
# Version, transport, MTU; number, first packet, queue key; reads, local id, port; address; name of the device.
_QUEUE = Struct(f"<BBHIIIHHB16s{_NAME}s")
_REGION = Struct("<BBHQQ")
_KEY = Struct(f"<I{_NAME}s")
# The most rails of one process; no host has more ports.
MOST_KEYS = 64

RC, SRD = 0, 1


class QueueRecord(NamedTuple):
    """A queue pair: `transport` is RC or SRD, `mtu` in bytes, `reads` how many reads of others it serves at a time."""

    device: str
    port: int
    transport: int
    gid: bytes
    lid: int
    number: int
    first_packet: int
    queue_key: int
    mtu: int
    reads: int

    def pack(self) -> bytes:
        fields = self.number, self.first_packet, self.queue_key, self.reads, self.lid, self.port, self.gid
        return _QUEUE.pack(_VERSION, self.transport, self.mtu, *fields, _named(self.device))

    @classmethod
    def unpack(cls, data: bytes) -> QueueRecord:
        """`ValueError` for bytes that are no such record."""
        if len(data) != _QUEUE.size:
            raise ValueError(f"a queue record has {_QUEUE.size} bytes, these are {len(data)}")
        version, transport, mtu, number, first_packet, queue_key, reads, lid, port, gid, device = _QUEUE.unpack(data)
        if version != _VERSION or transport not in (RC, SRD) or mtu not in (256, 512, 1024, 2048, 4096, 8192):
            raise ValueError(f"a queue record of version {version}, transport {transport}, MTU {mtu}")
        return cls(_name(device), port, transport, gid, lid, number, first_packet, queue_key, mtu, reads)


class RegionRecord(NamedTuple):
    """Memory that others may reach: `keys` has the remote key on each device of its process."""

    address: int
    nbytes: int
    writable: bool
    keys: dict[str, int]

    def pack(self) -> bytes:
        if len(self.keys) > MOST_KEYS:
            raise ValueError(f"memory registered on {len(self.keys)} devices, {MOST_KEYS} at most can be told")
        head = _REGION.pack(_VERSION, self.writable, len(self.keys), self.address, self.nbytes)
        return head + b"".join(_KEY.pack(key, _named(device)) for device, key in self.keys.items())

    @classmethod
    def unpack(cls, data: bytes) -> RegionRecord:
        """`ValueError` for bytes that are no such record."""
        try:
            version, writable, count, address, nbytes = _REGION.unpack_from(data)
        except error:
            raise ValueError(f"a region record has {_REGION.size} bytes at least, these are {len(data)}") from None
        if version != _VERSION or writable > 1 or count > MOST_KEYS or len(data) != _REGION.size + count * _KEY.size:
            raise ValueError(f"a region record of version {version} with {count} keys in {len(data)} bytes")
        if not nbytes or address + nbytes > 1 << 64:
            raise ValueError(f"a region of {nbytes} bytes at {address:#x}")
        keys = {_name(device): key for key, device in _KEY.iter_unpack(data[_REGION.size :])}
        return cls(address, nbytes, bool(writable), keys)


def _named(device: str) -> bytes:
    name = device.encode()
    if not name or len(name) > _NAME or b"\0" in name:
        raise ValueError(f"the name of a device has 1 to {_NAME} bytes, this is {device!r}")
    return name


def _name(field: bytes) -> str:
    name = field.rstrip(b"\0")
    try:
        text = name.decode()
    except UnicodeDecodeError:
        text = ""
    if not text or "\0" in text:
        raise ValueError(f"no name of a device: {field!r}")
    return text
