"""The report of `monarch doctor` about paths between memories."""

from __future__ import annotations

from collections.abc import Iterator

from monarch.rdma._machine.probe import device_remedies, locked_memory, probe, same_host

# Without it, copies on one host take twice the time.
_ADVICE = (
    "allow process_vm_readv in the seccomp profile, and kernel.yama.ptrace_scope 0 or 1; copies on one host go through rings until then"
)


def lines() -> Iterator[tuple[str, str, str]]:
    """Subject, text, and what to do; empty where nothing is wrong."""
    rows = probe()
    usable = ", ".join(row.name for row in rows if row.usable)
    absent = ", ".join(row.name for row in rows if not row.usable)
    yield "rdma", f"usable: {usable}; not usable: {absent} (`monarch rdma probe` says why); locked memory {locked_memory()}", ""
    for row in same_host():
        if not row.usable:
            yield f"rdma {row.name}", row.reason, _ADVICE
    for row, remedy in device_remedies():
        if remedy:
            yield f"rdma {row.name}", row.reason, remedy
