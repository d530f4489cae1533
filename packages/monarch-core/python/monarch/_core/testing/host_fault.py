"""Faults of whole hosts, made in the client, which knows all of them.

A cut is made by the processes outside of the slice: the client and the other hosts, with their procs, stop to read and write their
connections to the slice, and leave them open, so that neither side receives from the other and no process is notified, as with a cable that
is pulled. So a cut can be healed. The hosts of the slice only keep their procs from the memory of other processes. No outside process can
wake a frozen host: a process that is left there wakes it.
"""

from __future__ import annotations

import marshal
import os
from _thread import RLock

from monarch._core._native.protocol import GATHER
from monarch._core.process.process import FAULT, LocalProcess

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Hosts answer at once, if they can; one that is lost meanwhile is not waited for.
_PATIENCE = 10.0
# Procs too, unless they are frozen, and then they neither read nor write.
_PATIENCE_WITH_PROCS = 1.0

_lock = RLock()
# Cuts that can be healed: the hosts that are cut off.
_cuts: dict[int, set[int]] = {}
# How often that has changed.
_changes = 0


def begin(process: LocalProcess, id: int, kind: str, hosts: list[int], length: float | None) -> None:
    """In the client."""
    if kind == "kill":
        _ask(process, dict.fromkeys(hosts, ("kill host",)))
    elif kind == "freeze":
        _ask(process, dict.fromkeys(hosts, ("freeze host", length)))
    else:
        with _lock:
            before = _views(process)
            _cuts[id] = set(hosts)
            _change(process, before)
        if length is not None:
            from threading import Timer

            timer = Timer(length, heal, (process, id))
            timer.daemon = True
            timer.start()


def heal(process: LocalProcess, id: int) -> None:
    """Ends a cut; where another one still is, it stays."""
    with _lock:
        if id in _cuts:
            before = _views(process)
            del _cuts[id]
            _change(process, before)


def heal_all(process: LocalProcess) -> None:
    for id in list(_cuts):
        heal(process, id)


def _views(process: LocalProcess) -> dict[int, tuple[set[int], set[int]]]:
    """By host: whom it cuts off, and by whom it is cut off."""
    assert process.hosts is not None
    everybody = {process.job, *(host for host, _, _, lost in process.hosts.hosts() if lost is None)}
    views: dict[int, tuple[set[int], set[int]]] = {}
    for member in everybody:
        cuts, beside = views[member] = set(), set()
        for cut in _cuts.values():
            if member in cut:
                beside |= everybody - cut
            else:
                cuts |= cut
    return views


def _change(process: LocalProcess, before: dict[int, tuple[set[int], set[int]]]) -> None:
    global _changes
    assert process.hosts is not None
    _changes += 1
    after = _views(process)
    said: dict[int, tuple[Any, ...]] = {
        host: ("cut off", process.job, _changes, list(cuts), list(beside))
        for host, (cuts, beside) in after.items()
        if host != process.job and before.get(host) != (cuts, beside)
    }
    # Who is cut off from here hears of it before, or after; also all others, if that takes the gateway.
    here, cuts = before[process.job][0], after[process.job][0]
    own = _changes, list(cuts), list(after[process.job][1])
    if cuts < here:
        _cut_off(process, process.job, *own)
    _ask(process, said, here & cuts)
    if not cuts < here:
        _cut_off(process, process.job, *own)


def _ask(process: LocalProcess, requests: dict[int, tuple[Any, ...]], apart: set[int] | None = None) -> None:
    """Waits for their answers; hosts that are apart are asked, and answer some time."""
    for host in apart or ():
        if host in requests:
            process.native.request(host, FAULT, marshal.dumps((*requests[host], 0)))
    heard = [host for host in requests if not apart or host not in apart]
    cell = process.native.cell(GATHER, len(heard), heard)
    for rank, host in enumerate(heard):
        process.native.request(host, FAULT, marshal.dumps((*requests[host], rank)), cell.slot)
    if heard:
        cell.wait(0, _PATIENCE)


# ---- in the client, and in the agent of a host

# By job, whose cuts have changed so often: whom this host cuts off, and who cuts it off.
_seen: dict[int, tuple[int, list[int], list[int]]] = {}


def _cut_off(process: LocalProcess, job: int, change: int, hosts: list[int], beside: list[int]) -> None:
    if process.hosts is None:
        return
    with _lock:
        if job in _seen and _seen[job][0] > change:
            return
        _seen[job] = (change, hosts, beside)
        cell = process.hosts.cut_off(
            [host for _, each, _ in _seen.values() for host in each], [h for *_, each in _seen.values() for h in each]
        )
    cell.wait(0, _PATIENCE_WITH_PROCS)


def carry_out(process: LocalProcess, request: tuple[Any, ...]) -> None:
    if request[0] == "cut off":
        _cut_off(process, *request[1:])
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
