"""The events that an actor receives beside messages."""

from __future__ import annotations

from monarch._core.errors.failure import ExitReason

# Events that overtake messages. The first byte is the kind.
EVENT_FAILURE, EVENT_ABORT, EVENT_END, EVENT_UNDELIVERABLE = b"F", b"A", b"E", b"U"


def aborted(reason: bytes) -> ExitReason:
    from monarch._core.pickle.remote_exception import bounded

    return ExitReason("raised", detail=f"actor explicitly aborted due to: {bounded(reason.decode())}")
