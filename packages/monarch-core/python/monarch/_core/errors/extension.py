"""The errors of the extension interface: promises, services, requests."""

from __future__ import annotations

from monarch._core.errors.errors import MonarchError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch._core.extension.proc_end import ProcEnd


class HandleError(MonarchError, ValueError):
    """Bytes that `handle_from_bytes` cannot make a handle of; `code` is `handle_malformed`, `handle_unknown`, `handle_expired` or
    `handle_client_lost`.
    """

    __module__ = "monarch.actor"
    _default_code = "handle_malformed"


class PromiseDropped(MonarchError):
    """The last reference to a promise was dropped before the promise was set; the message has the promise's name."""

    __module__ = "monarch.extension"
    _default_code = "promise_dropped"


class PromiseFailed(MonarchError):
    """Native code has set a promise with an error; the message has its text."""

    __module__ = "monarch.extension"
    _default_code = "promise_failed"


class ServiceError(MonarchError):
    """A service of a host did not start, or runs with other arguments."""

    __module__ = "monarch.extension"
    _default_code = "service_failed"


class RequestError(MonarchError):
    """A request to another process has failed.

    `body` is the handler's error; `end` is the end of the process, if that is the reason.
    """

    __module__ = "monarch.extension"
    _default_code = "request_failed"

    def __init__(
        self, message: str, body: bytes = b"", end: ProcEnd | None = None, *, code: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, code=code, hint=hint)
        self.body = body
        self.end = end
