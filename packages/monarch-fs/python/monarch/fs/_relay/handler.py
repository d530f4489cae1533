"""The handler of requests of an object that may be dropped."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from monarch.extension import Request


def handled(handler: weakref.WeakMethod[Callable[[Request], None]], request: Request) -> None:
    """A handler stays registered; the object that it is of may go."""
    found = handler()
    request.defer()
    if found is None:
        request.fail(b"it serves no more")
    else:
        found(request)
