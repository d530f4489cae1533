"""Processes that this one can send to: an identity that no process of the job has would be waited for, for ever.

A process knows another one by a handle, by a message or by `reach`; the agent of a host knows all processes of its host. What this process
does not know is asked of the agent, which answers the call in the place of a process that it does not know either.
"""

from __future__ import annotations

from monarch._core._native.protocol import FAILED, FIRST_ERROR, OK
from monarch._core.extension.ids import ProcId
from monarch._core.process.process import BESIDE, KNOWN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch._core._native import CallCell
    from monarch._core.process.process import LocalProcess

# The answer that an agent gives in the place of a process.
UNKNOWN = b"no process of the job has this identity"


def checked_id(proc: object, what: str) -> ProcId:
    """The identity of a process; `TypeError` or `ValueError` for what cannot be one."""
    if isinstance(proc, bool) or not isinstance(proc, int):
        raise TypeError(f"{what}: expected the identity of a process, a number, not {proc!r}")
    if not 0 < proc < 1 << 64:
        raise ValueError(f"{what}: {int(proc)} is not the identity of a process: expected a number of 64 bits")
    return ProcId(proc)


def check_known(process: LocalProcess, call: CallCell, proc: ProcId, host: int = 0) -> bool:
    """Fails the call if no process of the job has this identity, as far as this process and the agent of `host` know.

    False if that is certain already. The agent may find it out later.
    """
    native = process.native
    if native.knows(proc, process.uid) or any(proc in info.procs for info in list(process.infos.values())):
        return True
    agent = host or process.agent_uid
    if agent == process.uid or not native.knows(agent, process.uid):
        call.complete(0, FAILED, UNKNOWN)
        return False
    native.request(agent, KNOWN, proc.to_bytes(8, "little"), call.slot)
    return True


def job_of_host(process: LocalProcess, host: int) -> int:
    """Of a service: the job that it serves in which a host has this name, as its agent knows; 0 if there is none."""
    call = process.native.cell(FIRST_ERROR, 1, [process.agent_uid])
    process.native.request(process.agent_uid, BESIDE, host.to_bytes(8, "little"), call.slot)
    call.wait()
    result = call.result(0)
    call.set_retrieved()
    here = 0 if result is None or result.status != OK else int.from_bytes(result.raw(), "little")
    return next((job for job, name in process.serves.items() if name == here), 0)


def handle_beside(process: LocalProcess, sender: int, slot: int, body: bytes) -> None:
    """Of an agent, on its housekeeping thread: what this host is called in the job of a service in which another host has that name."""
    here = process.native.here_beside(int.from_bytes(body, "little"), sender) or 0
    process.native.reply(sender, slot, 0, OK, here.to_bytes(8, "little"))


def handle_request(process: LocalProcess, sender: int, slot: int, body: bytes) -> None:
    """Of an agent, on its housekeeping thread. The call of a process that is known gets its answer from that process."""
    if not process.native.knows(int.from_bytes(body, "little"), sender):
        process.native.reply(sender, slot, 0, FAILED, UNKNOWN)
