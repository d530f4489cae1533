"""Faults of whole hosts, made in the client, which knows all of them.

The processes outside of the slice make a cut: the client and the other hosts, with their procs, stop reading and writing their
connections to the slice, and leave them open. So neither side receives from the other and no process is notified, as with a pulled cable,
and a cut can be healed. The hosts of the slice only keep their procs from the memory of other processes. No outside process can
continue a frozen host: a process that is left there does.
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

# Seconds: hosts answer at once, if they can; the client does not wait longer for a host that is lost meanwhile.
_ANSWER_TIMEOUT = 10.0
# Seconds for hosts with procs, which answer at once, too. Frozen procs do not answer, but they neither read nor write either.
_ANSWER_TIMEOUT_WITH_PROCS = 1.0

_lock = RLock()
# Cuts that can be healed: for each its hosts that are cut off.
_cuts: dict[int, set[int]] = {}
# The number of changes of the cuts.
_changes = 0


def begin(process: LocalProcess, id: int, kind: str, hosts: list[int], length: float | None) -> None:
    """Begins a fault, in the client."""
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
    """Ends a cut. Hosts that another cut includes stay cut off."""
    with _lock:
        if id in _cuts:
            before = _views(process)
            del _cuts[id]
            _change(process, before)


def heal_all(process: LocalProcess) -> None:
    for id in list(_cuts):
        heal(process, id)


def _views(process: LocalProcess) -> dict[int, tuple[set[int], set[int]]]:
    """For each host: the hosts that it must cut off, and the hosts that cut it off."""
    assert process.hosts.native is not None
    members = {process.peers.job, *(host for host, _, _, lost in process.hosts.native.hosts() if lost is None)}
    views: dict[int, tuple[set[int], set[int]]] = {}
    for member in members:
        cuts, beside = views[member] = set(), set()
        for cut in _cuts.values():
            if member in cut:
                beside |= members - cut
            else:
                cuts |= cut
    return views


def _change(process: LocalProcess, before: dict[int, tuple[set[int], set[int]]]) -> None:
    global _changes
    assert process.hosts.native is not None
    _changes += 1
    after = _views(process)
    requests: dict[int, tuple[Any, ...]] = {
        host: ("cut off", process.peers.job, _changes, list(cuts), list(beside))
        for host, (cuts, beside) in after.items()
        if host != process.peers.job and before.get(host) != (cuts, beside)
    }
    # A host to be cut off from the client is notified before a cut, or after its end; all other hosts too, if the cut includes the gateway.
    here, cuts = before[process.peers.job][0], after[process.peers.job][0]
    own = _changes, list(cuts), list(after[process.peers.job][1])
    if cuts < here:
        _cut_off(process, process.peers.job, *own)
    _ask(process, requests, here & cuts)
    if not cuts < here:
        _cut_off(process, process.peers.job, *own)


def _ask(process: LocalProcess, requests: dict[int, tuple[Any, ...]], apart: set[int] | None = None) -> None:
    """Sends requests and waits for the answers. Hosts in `apart` get the request, but their answers may come late."""
    for host in apart or ():
        if host in requests:
            process.native.request(host, FAULT, marshal.dumps((*requests[host], 0)))
    answering = [host for host in requests if not apart or host not in apart]
    cell = process.native.cell(GATHER, len(answering), answering)
    for rank, host in enumerate(answering):
        process.native.request(host, FAULT, marshal.dumps((*requests[host], rank)), cell.slot)
    if answering:
        cell.wait(0, _ANSWER_TIMEOUT)


# ---- in the client, and in the agent of a host

# By job, with the number of the job's changes: the hosts that this host cuts off, and the hosts that cut it off.
_seen: dict[int, tuple[int, list[int], list[int]]] = {}


def _cut_off(process: LocalProcess, job: int, change: int, hosts: list[int], beside: list[int]) -> None:
    if process.hosts.native is None:
        return
    with _lock:
        if job in _seen and _seen[job][0] > change:
            return
        _seen[job] = (change, hosts, beside)
        cell = process.hosts.native.cut_off(
            [host for _, each, _ in _seen.values() for host in each], [h for *_, each in _seen.values() for h in each]
        )
    cell.wait(0, _ANSWER_TIMEOUT_WITH_PROCS)


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
    # The process has a session of its own and inherits no descriptor: it still runs when it must continue this process.
    subprocess.Popen(
        ["sh", "-c", f"sleep 0.05; kill -STOP {pids}; sleep {seconds}; kill -CONT {pids}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
