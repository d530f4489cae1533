"""The fields of requests between housekeeping threads, which the process that sends them has encoded.

A malformed request is the fault of its sender. The housekeeping thread drops it and records an event, and the process goes on.
"""

from __future__ import annotations

import marshal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class MalformedRequest(Exception):
    """The body of a request does not decode."""


def fields(body: bytes | memoryview, *types: Any) -> tuple[Any, ...]:
    """The fields of a body, a marshalled tuple of values of these types; `MalformedRequest` for any other body."""
    try:
        found: tuple[Any, ...] = marshal.loads(body)
    except (EOFError, ValueError, TypeError) as e:
        raise MalformedRequest from e
    is_tuple = isinstance(found, tuple)  # pyright: ignore[reportUnnecessaryIsInstance]
    if not is_tuple or len(found) != len(types) or not all(map(isinstance, found, types)):
        raise MalformedRequest
    return found


def number(body: bytes) -> int:
    """The id that is the whole body; `MalformedRequest` for any other body."""
    if len(body) != 8:
        raise MalformedRequest
    return int.from_bytes(body, "little")
