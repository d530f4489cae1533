"""The check that a process exists: a call to an identity that no process of the job has would wait for ever.

A process knows the processes that it got in a handle, a message or `reach`; the agent of a host knows all processes of its host. For an
identity that this process does not know, it queries the agent, which answers the call itself if it does not know the identity either.
"""

from __future__ import annotations

from monarch._core._native.protocol import FAILED, FIRST_ERROR, OK
from monarch._core.extension.ids import ProcId
from monarch._core.process.process import BESIDE, KNOWN
from monarch._core.process.request_fields import number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch._core._native import PendingCall
    from monarch._core.process.process import LocalProcess

# The answer of an agent in place of an unknown process.
UNKNOWN = b"no process of the job has this identity"


def checked_id(proc: object, what: str) -> ProcId:
    """The identity of a process; `TypeError` or `ValueError` for an invalid one."""
    if isinstance(proc, bool) or not isinstance(proc, int):
        raise TypeError(f"{what}: expected the identity of a process, a number, not {proc!r}")
    if not 0 < proc < 1 << 64:
        raise ValueError(f"{what}: {int(proc)} is not the identity of a process: expected a number of 64 bits")
    return ProcId(proc)


def check_exists(process: LocalProcess, call: PendingCall, proc: ProcId, host: int = 0) -> bool:
    """Fails the call if no process of the job has this identity, as far as this process and the agent of `host` know.

    False if that is already certain. The agent may find out later.
    """
    native = process.native
    if native.knows(proc, process.uid) or any(proc in info.procs for info in list(process.meshes.known.values())):
        return True
    agent = host or process.agent_uid
    if agent == process.uid or not native.knows(agent, process.uid):
        call.complete(0, FAILED, UNKNOWN)
        return False
    native.request(agent, KNOWN, proc.to_bytes(8, "little"), call.slot)
    return True


def job_of_host(process: LocalProcess, host: int) -> int:
    """In a service: the served job in which a host has this id, according to its agent; 0 if there is none."""
    call = process.native.cell(FIRST_ERROR, 1, [process.agent_uid])
    process.native.request(process.agent_uid, BESIDE, host.to_bytes(8, "little"), call.slot)
    call.wait()
    result = call.result(0)
    call.set_retrieved()
    here = 0 if result is None or result.status != OK else int.from_bytes(result.raw(), "little")
    return next((job for job, name in process.peers.serves.items() if name == here), 0)


def handle_beside(process: LocalProcess, sender: int, slot: int, body: bytes) -> None:
    """In an agent, on its housekeeping thread: answers a service with the id of this host in the job in which another host has the given
    id.
    """
    here = process.native.own_id_beside(number(body), sender) or 0
    process.native.reply(sender, slot, 0, OK, here.to_bytes(8, "little"))


def handle_request(process: LocalProcess, sender: int, slot: int, body: bytes) -> None:
    """In an agent, on its housekeeping thread: answers for an unknown process. A known process answers the call itself."""
    if not process.native.knows(number(body), sender):
        process.native.reply(sender, slot, 0, FAILED, UNKNOWN)
