"""The resources that this process has left behind: processes, socket files, shared memory, actors, threads."""

from __future__ import annotations

import os


def assert_clean() -> None:
    """Raises `AssertionError` with a list if this process has left children, sockets, shared memory or threads.

    The zygote and the threads of a client do not count as long as the client runs.
    """
    left = [*_processes(), *_sockets(), *_shared_memory(), *_threads()]
    if left:
        raise AssertionError("left behind:\n" + "\n".join(f"  {thing}" for thing in left))


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as f:
                found += [int(child) for child in f.read().split()]
    except OSError:  # the process has ended meanwhile
        return found
    return found


def _processes() -> list[str]:
    from monarch._core.process.current import has_exited, known_process

    process = known_process()
    zygote = process.native.zygote_pid() if process is not None and process.is_client and not has_exited() else None
    pids: list[int] = []
    for child in _children(os.getpid()):
        pids += _children(child) if child == zygote else [child]
    return [f"process {pid}: {_command(pid)}" for pid in sorted(pids)]


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as f:
            return f.read().replace(b"\0", b" ").decode(errors="replace").strip() or "(ended, not reaped)"
    except OSError:
        return "(ended)"


def _sockets() -> list[str]:
    """The files of this process's unix sockets. Abstract sockets end with the process, and the control socket of a running client is left
    out.
    """
    from monarch._core._native import control_directory
    from monarch._core.process.current import has_exited, known_process

    own = f"{control_directory()}/" if known_process() is not None and not has_exited() else None
    inodes = {target[8:-1] for target in _open_files() if target.startswith("socket:[")}
    with open("/proc/net/unix") as f:
        lines = [line.split(maxsplit=7) for line in f.read().splitlines()[1:]]
    files = [fields[7] for fields in lines if len(fields) == 8 and fields[6] in inodes and fields[7].startswith("/")]
    return [f"socket {file}" for file in files if own is None or not file.startswith(own)]


def _shared_memory() -> list[str]:
    from monarch._core.process.current import has_exited, known_process

    found = [f"shared memory {name}" for name in sorted(os.listdir("/dev/shm")) if name.startswith("monarch")]
    if known_process() is None or has_exited():
        found += [f"shared memory {target}" for target in _open_files() if target.startswith("/memfd:monarch")]
    return found


def _open_files() -> list[str]:
    found: list[str] = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:  # the descriptor was the one that listed them
            continue
    return found


def _threads() -> list[str]:
    """Threads of actors, and threads of the user that would keep the process from ending."""
    import threading

    from monarch._core.process.actor_thread import ActorThread

    me = (threading.current_thread(), threading.main_thread())
    threads = [t for t in threading.enumerate() if t not in me and (isinstance(t, ActorThread) or not t.daemon)]
    return [f"thread {t.name}" for t in threads]
