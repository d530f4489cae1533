"""The memory cgroup of this process, of either version: its limit, what it uses, and how often the kernel has killed for it."""

from __future__ import annotations

from collections.abc import Iterator


def out_of_memory_kills() -> int:
    """How many processes of the cgroup the kernel has killed for lack of memory; 0 where that is not known."""
    for folder, is_second in _folders():
        lines = _read(f"{folder}/{'memory.events' if is_second else 'memory.oom_control'}").splitlines()
        if lines:
            return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
    return 0


def room() -> int | None:
    """Bytes that the limit of the cgroup leaves; None without a limit. Memory of files that the kernel may drop counts as left."""
    for folder, is_second in _folders():
        limit = _read(f"{folder}/{'memory.max' if is_second else 'memory.limit_in_bytes'}").strip()
        used = _read(f"{folder}/{'memory.current' if is_second else 'memory.usage_in_bytes'}").strip()
        if not limit.isdigit() or not used.isdigit():
            continue
        name = "inactive_file " if is_second else "total_inactive_file "
        dropped = next((int(line.split()[1]) for line in _read(f"{folder}/memory.stat").splitlines() if line.startswith(name)), 0)
        return max(0, int(limit) - int(used) + dropped)
    return None


def _folders() -> Iterator[tuple[str, bool]]:
    """Where the files of the cgroup may be, and whether they are those of version 2. In a container its own group is the root."""
    for line in _read("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root = "/sys/fs/cgroup/memory" if controllers else "/sys/fs/cgroup"
        yield f"{root}{path.rstrip('/')}", not controllers
        if path != "/":
            yield root, not controllers


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""
