"""`exec_command`: a command on the hosts of a mesh, its output here, its exit code in a Future."""

from __future__ import annotations

import atexit
import os
import time
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from monarch.actor import Channel, Future, HostMesh, this_proc
from monarch.job._client.execution import Execution, Target, buffered
from monarch.job._files import audit
from monarch.job._host import command
from monarch.job._host.command import SUBDIR, Order

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Seconds that the end of the client waits for the effects of a SIGKILL.
_KILL_TIMEOUT_S = 3.0


def exec_command(
    host_mesh: HostMesh,
    cmd: list[str],
    env: dict[str, str] | None = None,
    workdir: str | None = None,
    output_dir: str | None = None,
    rank: int | None = None,
    point: dict[str, int] | None = None,
    per_host: dict[str, int] | None = None,
    *,
    timeout: float | None = None,
) -> Future[int]:
    """Runs a command on every host, in `per_host` processes of each; begins now. The result is the largest exit code.

    Each runs in a process of its own, in its own group, without stdin; what is in the group when it ends is killed. A Python file, or `-m`
    with a module, is run by the interpreter of the hosts. A signal counts as 128 plus its number, `timeout` (seconds) as 124. `ExecError`
    if it cannot be started, `SupervisionError` if a host is lost. `rank` chooses a host of the mesh, with all its processes; `point` (label
    to index) hosts or processes. `env` is added to the environment. With `output_dir` its output goes to `stdout.txt` and `stderr.txt` in
    that folder and not here; several processes of a host write `stdout_3.txt`, by rank, unless it has `$SUBDIR` in it, which is
    `hosts_0_gpus_1` and the like.
    """
    target = make_target(
        host_mesh,
        cmd,
        env,
        workdir,
        rank=rank,
        point=point,
        per_host=per_host,
        timeout=timeout,
        folder=output_dir,
        streams=output_dir is None,
    )
    return start([target])[1]


def make_target(
    hosts: HostMesh,
    cmd: Sequence[str | None],
    env: Mapping[str, str] | None = None,
    workdir: str | None = None,
    *,
    rank: int | None = None,
    point: Mapping[str, int] | None = None,
    per_host: Mapping[str, int] | None = None,
    timeout: float | None = None,
    folder: str | None = None,
    streams: bool = True,
    script: tuple[str, bytes] | None = None,
    name: str = "",
    among: int = 1,
) -> Target:
    """Checks everything before anything happens. `among`: how many targets share a console."""
    check_words(cmd, env)
    check_folder("workdir", workdir)
    check_folder("output_dir", folder)
    if rank is not None and point is not None:
        raise ValueError("rank and point exclude each other")
    is_number = isinstance(timeout, (int, float))  # pyright: ignore[reportUnnecessaryIsInstance]
    if timeout is not None and not (is_number and 0 < timeout < float("inf")):
        raise ValueError(f"invalid timeout {timeout!r}: expected a positive number of seconds")
    per = dict(per_host or {})
    for label, size in per.items():
        if label in hosts.sizes:
            raise ValueError(f"per_host dimension '{label}' is a dimension of the hosts as well")
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"per_host['{label}'] must be a positive int, not {size!r}")
    sizes = {**hosts.sizes, **per}
    # A rank counts hosts, however many processes run on each.
    fixed = chosen(sizes, None, point) if rank is None else chosen(hosts.sizes, rank, None)
    on_host = {label: index for label, index in fixed.items() if label in hosts.sizes}
    left = {label: size for label, size in per.items() if label not in fixed}
    chosen_hosts = hosts.slice(**on_host) if on_host else hosts
    ranks = len(chosen_hosts)
    for size in left.values():
        ranks *= size
    several = ranks * among > 1
    order = Order(
        argv=tuple(cmd),
        env=dict(env or {}),
        workdir=workdir or None,
        sizes=sizes,
        fixed=fixed,
        streams=streams,
        by_line=several,
        folder=folder,
        is_named_by_rank=folder is not None and SUBDIR not in folder and any(size > 1 for size in left.values()),
        buffered=buffered(ranks * among),
        timeout=timeout,
        script=script,
        grace=command.GRACE,
    )
    return Target(chosen_hosts, left, order, ranks, name)


def chosen(sizes: Mapping[str, int], rank: int | None, point: Mapping[str, int] | None) -> dict[str, int]:
    """The coordinates that a rank or a point, which may leave out dimensions, settles."""
    found = dict(point or {})
    if rank is not None:
        total = 1
        for size in sizes.values():
            total *= size
        if not 0 <= rank < total:
            raise ValueError(f"rank {rank} is not in a mesh of {total}")
        for label in reversed(list(sizes)):
            rank, found[label] = divmod(rank, sizes[label])
        found = {label: found[label] for label in sizes}
    for label, index in found.items():
        if label not in sizes:
            raise ValueError(f"no dimension '{label}', there is: {', '.join(sizes) or 'none'}")
        if not 0 <= index < sizes[label]:
            raise ValueError(f"{label}={index} is out of range: the size is {sizes[label]}")
    return found


def check_words(cmd: Sequence[str | None], env: Mapping[str, str] | None) -> None:
    if isinstance(cmd, str) or not cmd:
        raise ValueError("cmd is a list of words, the first of which is the program")
    for word in cmd:
        if word is not None and not _can_be_sent(word):
            raise ValueError(f"a word of a command is text without null characters and lone surrogates, not {word!r}")
    for name, value in (env or {}).items():
        if not _can_be_sent(name) or not _can_be_sent(value) or not name or "=" in name:
            raise ValueError(f"not an environment variable: {name!r}={value!r}")


def check_folder(argument: str, folder: str | None) -> None:
    if folder is not None and not _can_be_sent(folder):
        raise ValueError(f"{argument} is text without null characters and lone surrogates, not {folder!r}")


def _can_be_sent(text: object) -> bool:
    """Whether the kernel of the host takes it: text, and encodable."""
    try:
        return isinstance(text, str) and b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


# ---- the client's side

# The receiving end of a result lives as long as the Future that shows it.
_receivers: WeakKeyDictionary[Future[int], object] = WeakKeyDictionary()
# Executions that may not have ended, each with the future of its end; of this process only.
_running: dict[int, tuple[Execution, Future[None]]] = {}
_exit_of = 0
_count = 0


def start(targets: list[Target], ends_with_reader: bool = False) -> tuple[Execution, Future[int]]:
    """Begins now."""
    global _count
    for target in targets:
        order = target.order
        where = f"{target.name or 'hosts'}, {target.ranks} ranks"
        audit.record("exec", where, "begun", command=audit.command_line(order.argv), workdir=order.workdir, point=order.fixed or None)
    execution = this_proc().spawn("exec", Execution, targets, ends_with_reader)
    port, receiver = Channel[int].open(once=True)
    port.return_undeliverable = False
    _end_with_client()
    result = receiver.recv()
    _receivers[result] = receiver
    ended = execution.run.call_one(port)
    _count += 1
    for number in [number for number, (_, other) in _running.items() if _is_over(other)]:
        del _running[number]
    _running[_count] = (execution, ended)
    return execution, result


def _end_with_client() -> None:
    # The handler is registered after the client's own exit handler, so that it runs before it, while procs exist.
    global _exit_of
    if _exit_of != os.getpid():
        _exit_of = os.getpid()
        _running.clear()
        atexit.register(_at_exit, _exit_of)


def _is_over(ended: Future[None]) -> bool:
    try:
        ended.get(timeout=0)
    except TimeoutError:
        return False
    except Exception:  # the execution has ended in some way
        return True
    return True


def _at_exit(pid: int) -> None:
    """Ends what still runs, and waits for that. Ctrl-C hurries it."""
    if os.getpid() != pid:
        return
    running = [(execution, ended) for execution, ended in _running.values() if not _is_over(ended)]
    try:
        _ask([execution.interrupt for execution, _ in running])
        _wait([ended for _, ended in running], 2 * command.GRACE + _KILL_TIMEOUT_S)
    except KeyboardInterrupt:
        _ask([execution.kill for execution, _ in running])
        _wait([ended for _, ended in running], _KILL_TIMEOUT_S)


def _ask(endpoints: list[Any]) -> None:
    for endpoint in endpoints:
        try:
            endpoint.broadcast()
        except Exception:  # that execution has ended
            continue


def _wait(ended: list[Future[None]], seconds: float) -> None:
    end = time.monotonic() + seconds
    for one in ended:
        try:
            one.get(timeout=max(0.0, end - time.monotonic()))
        except Exception:  # it has ended in some way, or is left to the kernel
            continue
