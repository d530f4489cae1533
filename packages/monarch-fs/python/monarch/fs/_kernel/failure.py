"""The errno that a reader gets for an exception: inside reads only errnos exist."""

from __future__ import annotations

import errno
import logging

_log = logging.getLogger(__name__)


def answer_errno(what: str, e: Exception) -> int:
    """The errno for an exception of the operation `what`; one that is no `OSError` is a defect and is logged."""
    if isinstance(e, InterruptedError):
        return errno.EINTR
    if isinstance(e, TimeoutError):
        return errno.EIO
    # The kernel does not accept other numbers: the reader would wait forever.
    if isinstance(e, OSError) and e.errno is not None and e.errno in errno.errorcode:
        return e.errno
    _log.error("%s failed", what, exc_info=e)
    return errno.EIO
