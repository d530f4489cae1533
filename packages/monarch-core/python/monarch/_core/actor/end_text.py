"""The text in the event of an actor's end: the first line of the reason, and the traceback of a failure that was raised."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch._core.errors.failure import MeshFailure

# Bytes that a record has for a text (`rust/events/src/text.rs`), and those of them that the first line may have.
_LONGEST, _FIRST = 4096, 1024
_LEFT_OUT = "...\n"


def end_text(end: MeshFailure) -> str:
    """The text, at most 4,096 bytes. A longer traceback keeps its last lines, which have the place and the exception."""
    detail, trace = end.reason.detail or "", end.__core__.traceback
    if not trace:
        return detail
    first = detail.partition("\n")[0].encode(errors="backslashreplace")[:_FIRST].decode(errors="ignore")
    room = _LONGEST - len(first.encode()) - 1
    kept = trace.encode(errors="backslashreplace")
    if len(kept) <= room:
        return f"{first}\n{kept.decode()}"
    last = kept[len(_LEFT_OUT) - room :].decode(errors="ignore")
    # The text starts at the begin of a line, unless one line is longer than the limit.
    whole = last.partition("\n")[2] or last
    return f"{first}\n{_LEFT_OUT}{whole}"
