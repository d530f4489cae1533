"""The checks of `monarch doctor`: one function per subject. Each gives one line, and the remedy if something is wrong.

A finding is a problem that will stop Monarch from working here. A requirement of only some uses is a line that is no finding.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from monarch._core.config.entry_points import installed_versions
from monarch._core.config.wheel import FOREIGN, install_hint

_MIB = 1 << 20
# The agent holds a socket and two pipes for each proc; users will hit a limit that leaves no room for 300 procs.
OPEN_FILES = 1024
# A proc has a housekeeping thread, an I/O thread and one per actor.
THREADS = 1024
# The default of containers; enough for Monarch, which does not keep its shared memory there.
SHM = 64 * _MIB
# The size that collectives between GPUs need.
SHM_GPU = 1024 * _MIB
# Clock sources that are read without a system call.
_FAST_CLOCKS = frozenset({"tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "xen", "timebase", "tod"})
# A clock that shows an earlier year has not been set: Monarch did not exist then.
_EPOCH = 2026
# The requirements of the wheel (pyproject.toml).
_NEEDED = {"cloudpickle": (3, 0), "click": (8, 1)}
_PROC_TIMEOUT = 20.0


class Line(NamedTuple):
    """The result of one check, and the command to run. A finding has one, and so has an extra that is not installed (`optional`)."""

    subject: str
    text: str
    todo: str = ""
    optional: bool = False

    @property
    def is_finding(self) -> bool:
        return bool(self.todo) and not self.optional


def _count(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else f"{limit:,}"


def _size(limit: int) -> str:
    if limit == resource.RLIM_INFINITY:
        return "unlimited"
    return f"{limit / _MIB:,.0f} MiB" if limit >= _MIB else f"{limit / 1024:,.0f} KiB"


def _below(limit: int, needed: int) -> bool:
    return limit != resource.RLIM_INFINITY and limit < needed


def open_files() -> Line:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"limit {_count(soft)}"
    if not _below(soft, OPEN_FILES):
        return Line("open files", text)
    text += ": each proc takes three in its agent, and each link one"
    if _below(hard, OPEN_FILES):
        return Line(
            "open files", text, f"raise the hard limit too, which is {_count(hard)}: limits.conf, or `docker run --ulimit nofile=65536`"
        )
    return Line("open files", text, f"run `ulimit -n {65536 if not _below(hard, 65536) else hard}` before the script")


def threads() -> Line:
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    group = _pids_of_group()
    if group is not None:
        used, most = group
        text = f"limit {_count(soft)}, of this container {most:,} with {used:,} in use"
        if most - used < THREADS:
            return Line(
                "processes", f"{text}: each proc has three threads and more", "raise pids.max: `docker run --pids-limit`, podPidsLimit"
            )
    else:
        text = f"limit {_count(soft)}"
    # The kernel does not apply this limit to root.
    if _below(soft, THREADS) and os.geteuid() != 0:
        return Line("processes", f"{text}: each proc has three threads and more", "run `ulimit -u 65536` before the script")
    return Line("processes", text)


def _pids_of_group(root: str = "/sys/fs/cgroup") -> tuple[int, int] | None:
    """Threads in use and allowed in this control group; None if there is no bound."""
    for folder in (root, f"{root}/pids"):
        try:
            with open(f"{folder}/pids.max") as most, open(f"{folder}/pids.current") as used:
                return int(used.read()), int(most.read())
        except (OSError, ValueError):  # no file system is mounted, this is the root group, or the limit is "max"
            continue
    return None


def locked_memory() -> Line:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    devices = _entries("/sys/class/infiniband")
    text = f"limit {_size(soft)}"
    if not devices:
        return Line("locked memory", f"{text}; only RDMA devices need more, and there are none")
    if soft != resource.RLIM_INFINITY:
        return Line(
            "locked memory",
            f"{text}, with {len(devices)} RDMA devices here",
            "run `ulimit -l unlimited`, or `docker run --ulimit memlock=-1`",
        )
    return Line("locked memory", f"{text}, {len(devices)} RDMA devices")


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def shared_folder(folder: str = "/dev/shm") -> Line:
    try:
        found = os.statvfs(folder)
    except OSError as e:
        return Line(folder, f"{e.strerror}", f"mount a tmpfs on {folder}: libraries for training need it")
    size = found.f_frsize * found.f_blocks
    if size < SHM:
        return Line(folder, _size(size), "give it more: `docker run --shm-size 1g`, or an emptyDir with `medium: Memory`")
    return Line(folder, _size(size) + ("; NCCL may need 1 GiB (`--shm-size 1g`), Monarch does not" if size < SHM_GPU else ""))


def anonymous_memory() -> Line:
    import mmap

    try:
        fd = os.memfd_create("monarch-doctor", os.MFD_CLOEXEC)
        try:
            os.truncate(fd, _MIB)
            with mmap.mmap(fd, _MIB) as memory:
                memory[-1] = 1
        finally:
            os.close(fd)
    except OSError as e:
        return Line(
            "memfd",
            f"{e.strerror}",
            "large messages travel in it: allow memfd_create in the seccomp profile, and give the container memory",
        )
    return Line("memfd", "works")


def fuse(device: str = "/dev/fuse") -> Line:
    wanted = _version("monarch-fs") is not None
    try:
        os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC))
    except OSError as e:
        if wanted:
            return Line(device, f"{e.strerror}", "monarch-fs needs it: `modprobe fuse`; in a container `docker run --device /dev/fuse`")
        return Line(device, f"{e.strerror}; only monarch-fs needs it, which is not installed")
    return Line(device, "can be opened")


def clock(folder: str = "/sys/devices/system/clocksource/clocksource0") -> Line:
    year = time.gmtime().tm_year
    if year < _EPOCH:
        return Line("clock", f"it says {year}", "set it, and keep it set: chrony or systemd-timesyncd")
    try:
        with open(f"{folder}/current_clocksource") as f:
            source = f.read().strip()
    except OSError:
        return Line("clock", "its source is not visible here")
    if source not in _FAST_CLOCKS:
        return Line(
            "clock",
            f"source {source}, which is slow to read: each look costs a system call",
            f"boot with `clocksource=tsc` if {folder} offers it",
        )
    return Line("clock", f"source {source}")


def system() -> Line:
    found = os.uname()
    text = f"{found.sysname} {found.release} on {found.machine}"
    if found.sysname != "Linux":
        return Line("system", text, "Monarch runs on Linux only")
    numbers = tuple(int(n) for n in found.release.split("-")[0].split(".")[:2] if n.isdigit())
    if numbers < (5, 4):
        return Line("system", text, "use a kernel of 5.4 or later: nothing older is tested")
    return Line("system", text)


def python() -> Line:
    text = f"{sys.implementation.name} {'.'.join(map(str, sys.version_info[:3]))}"
    if sys.implementation.name != "cpython":
        return Line("Python", text, "use CPython 3.11 or later")
    return Line("Python", text)


def _version(distribution: str) -> str | None:
    found = installed_versions().get(distribution)
    if found is None and distribution in _NEEDED:
        # A Linux distribution's packages may have the older metadata form, which is slow to read.
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version(distribution)
        except PackageNotFoundError:
            return None
    return found


def versions() -> list[tuple[str, str]]:
    """The installed distributions of this project, then core's requirements; each with its version."""
    own = sorted({name for name in installed_versions() if name.startswith("monarch-")} | {"monarch-core"})
    return [(name, _version(name) or "not installed as a wheel") for name in [*own, *_NEEDED]]


def wheels() -> Line:
    text = ", ".join(f"{name} {version}" for name, version in versions())
    for foreign in FOREIGN:
        if (version := _version(foreign)) is not None:
            todo = f"{foreign} {version} is a package of another project: `pip uninstall {foreign}`, then {install_hint('monarch-core')}"
            return Line("packages", text, todo)
    for name, least in _NEEDED.items():
        found = _version(name)
        needed = ".".join(map(str, least))
        if found is None:
            return Line("packages", text, f"install {name}: `pip install '{name}>={needed}'`")
        if _numbers(found) < least:
            return Line("packages", text, f"{name} is too old: `pip install -U '{name}>={needed}'`")
    return Line("packages", text)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in version.split(".")[:2] if n.isdigit())


def proc() -> Line:
    """Starts a proc and stops it, which needs all of the above."""
    start = time.monotonic()
    try:
        from monarch._core.hosts.here import this_host

        mesh = this_host().spawn_procs(name="doctor", preload=[])
        mesh.initialized.get(timeout=_PROC_TIMEOUT)
        spent = time.monotonic() - start
        mesh.stop().get(timeout=_PROC_TIMEOUT)
    except Exception as e:
        first = (str(e) or type(e).__name__).splitlines()[0]
        return Line("a proc", f"does not start: {first}", "see the findings above; without any, report this line as a bug")
    return Line("a proc", f"starts in {1000 * spent:.0f} ms, beside the other checks")


CHECKS: tuple[Callable[[], Line], ...] = (
    system,
    python,
    wheels,
    open_files,
    threads,
    locked_memory,
    anonymous_memory,
    shared_folder,
    fuse,
    clock,
    proc,
)


def examine(checks: tuple[Callable[[], Line], ...] = CHECKS) -> Iterator[Line]:
    """Runs all checks, cheapest first; a check that raises is a finding too."""
    for check in checks:
        try:
            yield check()
        except Exception as e:
            yield Line(check.__name__.replace("_", " "), f"{type(e).__name__}: {e}", "report this line as a bug of the doctor")


def as_text(line: Line) -> str:
    mark = "!" if line.is_finding else " "
    text = line.text.replace("\n", f"\n{'':17}")
    return f"{mark} {line.subject:<14} {text}"


def remedies(lines: list[Line]) -> list[str]:
    """The last lines of the report: the remedies of the findings, then the installation of extras, each once."""
    printed: list[str] = []
    for title, optional in (("to do:", False), ("only for uses that need it:", True)):
        todo = {line.todo: f"  {line.subject:<14} {line.todo}" for line in lines if line.todo and line.optional is optional}
        if todo:
            printed += ["", title, *todo.values()]
    return printed


def as_json(lines: list[Line]) -> list[dict[str, Any]]:
    return [{"subject": line.subject, "finding": line.is_finding, "text": line.text, "todo": line.todo} for line in lines]
