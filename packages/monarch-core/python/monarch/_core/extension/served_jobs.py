"""Of a service: the jobs whose processes it may be asked by, and may send to."""

from __future__ import annotations

import marshal

from monarch._core.process.current import current_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch._core.extension.request import Request

REQUEST = "monarch.service.serve"


def handle(request: Request) -> bytes:
    """Its agent names a job, and what this host is called there."""
    process = current_process()
    if request.proc != process.agent_uid:
        raise PermissionError("only the agent of a host says which jobs its services serve")
    job, here = marshal.loads(request.body)
    if job != process.job:
        process.native.admit_job(job)
        process.serves[job] = here
    return b""
