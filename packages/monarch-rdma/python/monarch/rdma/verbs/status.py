"""The status of completed work requests: `enum ibv_wc_status`."""

from __future__ import annotations

_NAMES = (
    "success",
    "local length error",
    "local queue pair operation error",
    "local context operation error",
    "local protection error",
    "flushed",
    "memory window bind error",
    "bad response",
    "local access error",
    "remote invalid request",
    "remote access error",
    "remote operation error",
    "no answer after all retries",
    "receiver not ready after all retries",
    "local domain violation",
    "remote invalid domain request",
    "remote aborted",
    "invalid context number",
    "invalid context state",
    "fatal",
    "no response in time",
    "general error",
)
# The memory does not, or no longer, match the request: another rail would fail too.
_FINAL = (4, 8, 9, 10)


def status_text(status: int, vendor: int = 0) -> str:
    """The status in words, with its number, and the vendor's if there is one."""
    name = _NAMES[status] if 0 <= status < len(_NAMES) else "unknown"
    return f"{name} (status {status}{f', vendor {vendor:#x}' if vendor else ''})"


def final(status: int) -> bool:
    """Whether it would fail on every rail."""
    return status in _FINAL
