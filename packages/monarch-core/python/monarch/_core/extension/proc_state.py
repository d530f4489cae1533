"""The state of another process of the job, in the format of `dump_state`."""

from __future__ import annotations

from threading import Thread

from monarch._core.extension.arguments import check_seconds
from monarch._core.extension.ids import ProcId
from monarch._core.extension.process_check import checked_id
from monarch._core.extension.request import ask

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch._core.extension.request import Request

REQUEST = "monarch.state"


def proc_state(proc: ProcId | int, timeout: float = 10.0) -> str:
    """The state of a process of the job as JSON, see `monarch.actor.dump_state`; secrets are masked. The call blocks.

    `RequestError` for a process that has ended or is not known, `TimeoutError` after `timeout` seconds.
    """
    check_seconds("timeout", timeout, positive=True)
    return ask(checked_id(proc, "proc_state"), REQUEST).get(timeout).decode()


def handle(request: Request) -> None:
    """Answers `proc_state`. A client queries its hosts, which takes time: it handles other requests meanwhile."""
    request.defer()
    Thread(target=_dump, args=(request,), name="monarch state", daemon=True).start()


def _dump(request: Request) -> None:
    from monarch._core.observe.inspection import dump_state

    try:
        request.answer(dump_state().encode("utf-8", "backslashreplace"))
    except Exception as e:  # the sender would wait for ever
        request.fail(f"{type(e).__name__}: {e}".encode(errors="backslashreplace"))
