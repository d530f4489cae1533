"""Faults of whole hosts, made in the client, which knows all of them.

A cut is made by everybody else: the client and the hosts outside of the slice stop to read and write their connections to those in it, and
leave them open, so that neither side hears the other and nobody is told, as with a cable that is pulled. So it can be healed as well. A
frozen host can be woken by nobody: a process that is left there does it.
"""

from __future__ import annotations

import marshal
import os

from monarch._core.process import FAULT, GATHER, LocalProcess

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Hosts answer at once, if they can; one that is lost meanwhile is not waited for.
_PATIENCE = 10.0

# Cuts that can be healed: the hosts that are cut off.
_cuts: dict[int, list[int]] = {}


def begin(process: LocalProcess, id: int, kind: str, hosts: list[int], length: float | None) -> None:
    """In the client."""
    if kind == "kill":
        _ask(process, hosts, ("kill host",))
    elif kind == "freeze":
        _ask(process, hosts, ("freeze host", length))
    else:
        _cuts[id] = hosts
        _cut(process, hosts, True)
        if length is not None:
            from threading import Timer

            timer = Timer(length, heal, (process, id))
            timer.daemon = True
            timer.start()


def heal(process: LocalProcess, id: int) -> None:
    """Ends a cut; where another one still is, it stays."""
    hosts = _cuts.pop(id, [])
    still = {host for others in _cuts.values() for host in others}
    healed = [host for host in hosts if host not in still]
    if healed:
        _cut(process, healed, False)


def heal_all(process: LocalProcess) -> None:
    for id in list(_cuts):
        heal(process, id)


def _cut(process: LocalProcess, hosts: list[int], yes: bool) -> None:
    assert process.hosts is not None
    others = [host for host, _, _, lost in process.hosts.hosts() if lost is None and host not in hosts]
    process.hosts.cut_off(hosts, yes)
    _ask(process, others, ("cut off", hosts, yes))


def _ask(process: LocalProcess, hosts: list[int], request: tuple[Any, ...]) -> None:
    cell = process.native.cell(GATHER, len(hosts), hosts)
    for rank, host in enumerate(hosts):
        process.native.request(host, FAULT, marshal.dumps((*request, rank)), cell.slot)
    if hosts:
        cell.wait(0, _PATIENCE)


# ---- in the agent of a host


def carry_out(process: LocalProcess, request: tuple[Any, ...]) -> None:
    if request[0] == "cut off":
        if process.hosts is not None:
            process.hosts.cut_off(request[1], request[2])
    elif request[0] == "kill host":
        import signal

        os.kill(os.getpid(), signal.SIGKILL)
    else:
        _freeze(process, request[1])


def _freeze(process: LocalProcess, seconds: float) -> None:
    import subprocess

    procs = [pid for _, pid in process.native.alive_procs() if pid]
    pids = " ".join(map(str, [*procs, process.native.zygote_pid() or "", os.getpid()]))
    # In a session of its own, with nothing of ours open: it is there when we are woken.
    subprocess.Popen(
        ["sh", "-c", f"sleep 0.05; kill -STOP {pids}; sleep {seconds}; kill -CONT {pids}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
