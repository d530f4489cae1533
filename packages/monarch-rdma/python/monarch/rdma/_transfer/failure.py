"""The outcome of an operation, from the record that native code makes of it to the exception."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from monarch import extension
from monarch.actor import MonarchError
from monarch.rdma.errors import (
    RDMAAccessError,
    RDMAError,
    RdmaInitError,
    RDMAPeerLostError,
    RDMAReleasedError,
    RDMATimeoutError,
    RDMATransferError,
    RDMAUnsupportedError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from monarch.extension.bulk import PendingCall

# rust/bulk/src/failure.rs
_RECORD = Struct("<BB?QQQi")
_PATHS = ("none", "local", "shm", "cma", "shm-staged", "tcp", "routed")
LOCAL = _PATHS.index("local")
# Only `pack` makes records of these. The detail of the second begins with the name of the transport and a zero byte.
CUDA_IPC, NAMED = 255, 254
_RELEASED, _PEER_LOST, _ACCESS, _TIMED_OUT, _TRANSFER, _UNSUPPORTED, _INIT = range(1, 8)
ACCESS, PEER_LOST, RELEASED, TIMED_OUT, TRANSFER, UNSUPPORTED = _ACCESS, _PEER_LOST, _RELEASED, _TIMED_OUT, _TRANSFER, _UNSUPPORTED
_KINDS = {
    _RELEASED: "released",
    _PEER_LOST: "the owner's process is gone",
    _ACCESS: "no access",
    _TIMED_OUT: "time-out",
    _TRANSFER: "transfer",
    _UNSUPPORTED: "unsupported",
    _INIT: "set-up",
}
# Seconds for the notice of a death to arrive here: shared memory shows first that an owner is about to end. The agent knows the reason when
# the kernel has freed its memory, which takes 0.1 s for each GiB; the error must not wait for that.
_NEWS = 0.03
# Kinds of the end of a process that are no failures.
_IN_ORDER = ("returned", "stopped")
_GONE = "actors that share memory must live as long as it is used; a handle of another process can replace this one"


class Failure(NamedTuple):
    kind: int
    path: str
    opened: bool
    done: int
    asked: int
    owner: int
    pid: int
    detail: str


def parse(record: bytes) -> Failure:
    kind, path, opened, done, asked, owner, pid = _RECORD.unpack_from(record)
    detail = record[_RECORD.size :].decode(errors="replace")
    if path == NAMED:
        name, _, detail = detail.partition("\0")
    else:
        name = "cuda-ipc" if path == CUDA_IPC else _PATHS[int(path)]
    return Failure(kind, name, opened, done, asked, owner, pid, detail)


def summary(failure: Failure) -> str:
    """The failure in one line."""
    detail, _, _ = failure.detail.partition("\n")
    return f"{_KINDS.get(failure.kind, 'failed')}: {detail}" if detail else _KINDS.get(failure.kind, "failed")


def pack(kind: int, path: int, opened: bool, done: int, asked: int, owner: int, detail: str) -> bytes:
    """What `parse` takes."""
    return _RECORD.pack(kind, path, opened, done, asked, owner, 0) + detail.encode()


def pack_named(kind: int, path: str, opened: bool, done: int, asked: int, owner: int, detail: str) -> bytes:
    """The same for a path that native code does not know, by its name. A detail of several lines has one for each try."""
    return pack(kind, NAMED, opened, done, asked, owner, f"{path}\0{detail}")


def on_path(record: bytes, path: str, done: int, asked: int, tries: str = "") -> bytes:
    """A failure of another path as one of this one, which had been tried before, and had moved so many bytes."""
    f = parse(record)
    detail = "\n".join(filter(None, (tries, f"{f.path}: {f.detail}"))) if f.kind == _TRANSFER else f.detail
    return pack_named(f.kind, path, True, done + f.done, asked, f.owner, detail)


def resized(record: bytes, done: int, asked: int) -> bytes:
    """The same failure, of a part of a larger operation, before which so many bytes had been moved."""
    kind, path, opened, _, _, owner, pid = _RECORD.unpack_from(record)
    return _RECORD.pack(kind, path, opened, done, asked, owner, pid) + record[_RECORD.size :]


def decoder(operation: str, peers: Mapping[int, str], timeout: float | None) -> Callable[[PendingCall], None]:
    """For a future: raises the error of its cell, if there is one. `peers` has owners by uid, as texts show them."""

    def decode(cell: PendingCall) -> None:
        error = cell.error()
        if error is not None:
            raw = error.raw()
            raise as_error(raw, operation, peers.get(parse(raw).owner, "an unknown process"), timeout)

    return decode


def as_error(record: bytes, operation: str, peer: str, timeout: float | None = None) -> RDMAError:
    """The exception of a record; `peer` is the owner."""
    f = parse(record)
    head = f"{operation} of {f.asked:,} bytes, {peer}, path {f.path}"
    if f.kind == _TIMED_OUT:
        phase = "transfer" if f.opened else "opening"
        bound = "" if timeout is None else f" of {timeout:g} s"
        error = RDMATimeoutError(
            f"{head}: time-out{bound} during {phase}: {f.done:,} of {f.asked:,} bytes",
            hint="the owner's process may be stopped, or the machine short of processors: `monarch ps` tells" if not f.opened else None,
        )
        error.done, error.asked, error.phase = f.done, f.asked, phase
        return error
    if f.kind == _PEER_LOST:
        end = _end_of(f.owner)
        if end is not None and end.reason.kind in _IN_ORDER:
            return RDMAReleasedError(f"{head}: its process has exited", cause=end.describe(), hint=_GONE)
        lost = RDMAPeerLostError(f"{head}: the owner's process is gone", cause="" if end is None else end.describe(), hint=_GONE)
        lost.reason = None if end is None else end.reason.kind
        return lost
    if f.kind == _RELEASED:
        return RDMAReleasedError(f"{head}: {f.detail}")
    if f.kind == _ACCESS:
        return RDMAAccessError(f"{head}: {f.detail}")
    if f.kind == _UNSUPPORTED:
        return RDMAUnsupportedError(f"{head}: {f.detail}")
    if f.kind == _INIT:
        return RdmaInitError(f"{head}: {f.detail}")
    first, _, others = f.detail.partition("\n")
    return RDMATransferError(
        f"{head}: {first}", cause=f"{f.path}: {f.done:,} of {f.asked:,} bytes, then {first}" + ("\n" + others if others else "")
    )


def _end_of(owner: int) -> extension.ProcEnd | None:
    """How the owner ended, of which the news may be under way still."""
    end = extension.end_of(owner)
    if end is not None:
        return end
    try:
        return extension.watch(owner).get(timeout=_NEWS)
    except (TimeoutError, MonarchError):  # no notice, or an owner that is no process of the job
        return None
