"""Errors in messages: an exception as plain data, and the exception of such data at the receiver."""

from __future__ import annotations

import errno
from typing import Any

from monarch.extension.channel import Message
from monarch.fs.errors import FsError, MountBusyError


def error_head(error: BaseException) -> dict[str, Any]:
    """What of an exception travels."""
    if isinstance(error, FsError):
        kind = "busy" if isinstance(error, MountBusyError) else "fs"
        return {"kind": kind, "reason": error.reason, "path": error.path, "errno": error.errno, "hint": error.hint, "code": error.code}
    if isinstance(error, ValueError):
        return {"kind": "value", "reason": str(error)}
    if isinstance(error, OSError):
        reason = error.strerror or str(error) or type(error).__name__
        return {
            "kind": "fs",
            "reason": reason,
            "path": str(error.filename or ""),
            "errno": error.errno or errno.EIO,
            "hint": None,
            "code": None,
        }
    return {"kind": "fs", "reason": f"{type(error).__name__}: {error}", "path": "", "errno": errno.EIO, "hint": None, "code": None}


def checked(answer: Message, path: str) -> Message:
    """The answer; what the peer raised is raised. `path` is that of the error where the sender named none."""
    error: dict[str, Any] | None = answer.head.get("error")
    if error is not None:
        raise error_of(error, path)
    return answer


def error_of(head: dict[str, Any], path: str) -> Exception:
    """The exception; `path` where the sender named none."""
    reason, where, hint = str(head.get("reason")), str(head.get("path") or path), head.get("hint")
    if head.get("kind") == "value":
        return ValueError(reason)
    if head.get("kind") == "busy":
        return MountBusyError(reason, path=where, hint=hint)
    number = head.get("errno")
    return FsError(reason, path=where, hint=hint, code=head.get("code"), errno=number if isinstance(number, int) else errno.EIO)
