"""Which paths and devices there are on this machine, and what is in the way of the others."""

from __future__ import annotations

import ctypes
import os
import resource
from typing import TYPE_CHECKING, NamedTuple

from monarch import extension
from monarch.rdma.drivers.loaded import driver, obstacle
from monarch.rdma.verbs import usable

if TYPE_CHECKING:
    from monarch.rdma.verbs.usable import Devices

_YAMA = "/proc/sys/kernel/yama/ptrace_scope"
_CAP_SYS_PTRACE = 19


class DeviceReport(NamedTuple):
    """A path, or a device of one: `rails` is how many ports or GPUs it has, `numa` the node it is on, None where it has none."""

    name: str
    kind: str
    rails: int
    numa: int | None
    usable: bool
    reason: str


def probe() -> list[DeviceReport]:
    """One row for each path and device, best first; `reason` is the obstacle of a row that is not usable."""
    return [*same_host(), *gpus(), *devices(), *other_hosts()]


def same_host() -> list[DeviceReport]:
    shared, direct = shared_memory(), direct_copies()
    staged = shared or ("" if direct else "not needed while cma works")
    return [
        DeviceReport("local", "host", 0, None, True, ""),
        DeviceReport("shm", "host", 0, None, not shared, shared),
        DeviceReport("cma", "host", 0, None, not direct, direct),
        DeviceReport("shm-staged", "host", 0, None, not shared, staged),
    ]


def other_hosts() -> list[DeviceReport]:
    allowed = bool(extension.setting("rdma_allow_tcp_fallback"))
    reason = "" if allowed else "`rdma_allow_tcp_fallback` is False"
    return [DeviceReport(name, "network", 0, None, allowed, reason) for name in ("tcp", "routed")]


def shared_memory() -> str:
    """The problem of shared memory; empty if it works."""
    try:
        os.close(os.memfd_create("monarch-probe", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    except OSError as e:
        return f"memfd_create: {e.strerror}"
    return ""


def direct_copies(scope_file: str = _YAMA) -> str:
    """The obstacle to copies from process to process by the kernel; empty if none is known."""

    class Range(ctypes.Structure):
        _fields_ = (("address", ctypes.c_void_p), ("length", ctypes.c_size_t))

    source, target = ctypes.create_string_buffer(b"monarch", 8), ctypes.create_string_buffer(8)
    ranges = [Range(ctypes.addressof(memory), 8) for memory in (target, source)]
    library = ctypes.CDLL(None, use_errno=True)
    if library.process_vm_readv(os.getpid(), ctypes.byref(ranges[0]), 1, ctypes.byref(ranges[1]), 1, 0) != 8:
        return f"process_vm_readv: {os.strerror(ctypes.get_errno())}; the seccomp profile of a container may forbid it"
    try:
        with open(scope_file) as f:
            scope = int(f.read())
    except (OSError, ValueError):  # no Yama
        return ""
    if scope >= 3:
        return f"kernel.yama.ptrace_scope is {scope}: nobody may, until the machine starts again"
    if scope == 2 and not _may_trace():
        return "kernel.yama.ptrace_scope is 2: only who has CAP_SYS_PTRACE may; `sysctl kernel.yama.ptrace_scope=1` permits it"
    return ""


def _may_trace() -> bool:
    """CAP_SYS_PTRACE, which root may lack in a container."""
    with open("/proc/self/status") as f:
        held = next((int(line.split()[1], 16) for line in f if line.startswith("CapEff:")), 0)
    return bool(held >> _CAP_SYS_PTRACE & 1)


def gpus() -> list[DeviceReport]:
    """Loads the driver; makes no context on a device."""
    reason = obstacle()
    return [DeviceReport("cuda-ipc", "device", 0 if reason else driver().count, None, not reason, reason)]


def devices(library: Devices | None = None) -> list[DeviceReport]:
    """The RDMA devices of this machine."""
    reports = [report for report, _ in device_remedies(library)]
    return reports or [DeviceReport("verbs", "verbs", 0, None, False, "no RDMA device")]


def device_remedies(library: Devices | None = None) -> list[tuple[DeviceReport, str]]:
    """Each device, and what would make it usable; empty where nothing is in its way, or a setting is."""
    found: list[tuple[DeviceReport, str]] = []
    for rails, what in usable.by_device(library or usable.library()):
        reason, remedy = ("`rdma_disable_ibverbs` is set", "") if extension.setting("rdma_disable_ibverbs") else what or ("", "")
        found.append((DeviceReport(f"verbs:{rails[0].device}", "verbs", len(rails), rails[0].numa, not reason, reason), remedy))
    return found


def locked_memory() -> str:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return "unlimited" if soft == resource.RLIM_INFINITY else f"{soft >> 10:,} KiB"
