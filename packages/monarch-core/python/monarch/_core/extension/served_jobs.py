"""In a service: the jobs whose processes may send requests to it and receive its messages."""

from __future__ import annotations

import marshal

from monarch._core.process.current import current_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch._core.extension.request import Request

REQUEST = "monarch.service.serve"


def handle(request: Request) -> bytes:
    """Records a job that the agent names, and the id of this host in that job."""
    process = current_process()
    if request.proc != process.agent_uid:
        raise PermissionError("only the agent of a host says which jobs its services serve")
    job, here = marshal.loads(request.body)
    if job != process.peers.job:
        process.native.admit_job(job)
        process.peers.serves[job] = here
    return b""
