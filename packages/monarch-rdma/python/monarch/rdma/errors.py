"""The exceptions of buffers. The first line of a text has operation, bytes, peer and path; then comes the cause, then a hint."""

from __future__ import annotations

from typing import Any, Self

from monarch.actor import MonarchError


class RDMAError(MonarchError, RuntimeError):
    """The base of what `monarch.rdma` raises at run time; misuse is a `ValueError` or a `TypeError` at the call."""

    __module__ = "monarch.rdma"
    _default_code = "rdma_failed"

    def __init__(self, what: str, *, cause: str = "", hint: str | None = None, code: str | None = None) -> None:
        lines = [what, *(f"  {line}" for line in cause.splitlines())]
        if hint:
            lines.append(f"hint: {hint}")
        super().__init__("\n".join(lines), code=code, hint=hint)


class _SystemError(RDMAError):
    """With a builtin that is an `OSError`, whose objects are made by its own `__new__`."""

    def __new__(cls, *args: Any, **_: Any) -> Self:  # pyright: ignore[reportInconsistentConstructor]
        return OSError.__new__(cls, *args)


class RdmaInitError(RDMAError):
    """Nothing can carry the bytes, or a setting is malformed; the cause has one line for each device that was tried."""

    __module__ = "monarch.rdma"
    _default_code = "rdma_init"


class RDMATimeoutError(_SystemError, TimeoutError):
    """Time was up: `done` of `asked` bytes had been moved, and `phase` is where the time went, "opening" or "transfer"."""

    __module__ = "monarch.rdma"
    _default_code = "rdma_timeout"
    done: int = 0
    asked: int = 0
    phase: str = ""


class RDMAReleasedError(RDMAError, LookupError):
    """The buffer was dropped, its lease ended, or its owner's process has exited in good order."""

    __module__ = "monarch.rdma"
    _default_code = "rdma_released"


class RDMAPeerLostError(_SystemError, ConnectionError):
    """The owner's process died; `reason` is the kind of its `ExitReason`, None where that is not known yet."""

    __module__ = "monarch.rdma"
    _default_code = "rdma_peer_lost"
    reason: str | None = None


class RDMAAccessError(_SystemError, PermissionError):
    """The handle does not allow it: it is read-only, restricted, or of another job."""

    __module__ = "monarch.rdma"
    _default_code = "rdma_access"


class RDMATransferError(RDMAError):
    """No path is left; the cause has one line for each attempt."""

    __module__ = "monarch.rdma"
    _default_code = "rdma_transfer"


class RDMAUnsupportedError(RDMAError, NotImplementedError):
    """That cannot be done with this memory, or between these processes."""

    __module__ = "monarch.rdma"
    _default_code = "rdma_unsupported"


class RDMAReadTransferWarning(UserWarning):
    """Never emitted; for filters of programs written for 0.7."""

    __module__ = "monarch.rdma"


class RDMAWriteTransferWarning(UserWarning):
    """Never emitted; for filters of programs written for 0.7."""

    __module__ = "monarch.rdma"


class RDMATcpFallbackWarning(UserWarning):
    """Bytes cross hosts without a verbs device."""

    __module__ = "monarch.rdma"
