"""The column `exit_reason`: the kind of an end, followed by `: ` and the detail that the runtime has of it, if it has one."""

from __future__ import annotations

# The kind of an end without a known reason.
UNKNOWN = "unknown"
# Kinds of ends that are not failures.
ORDERLY = frozenset({"stopped", "returned", UNKNOWN})


def exit_reason(kind: str, detail: str) -> str:
    return f"{kind}: {detail}" if detail else kind


def is_orderly(reason: str) -> bool:
    """Whether the end with this reason is no failure."""
    return reason.partition(": ")[0] in ORDERLY
