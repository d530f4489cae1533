"""The result of a hook of the user."""

from __future__ import annotations

from monarch._core.process.forked_child import leave_if_child


def verdict(hook: str, answer: object) -> bool:
    """Whether the result of a hook means that it has handled the failure; `TypeError` for an awaitable."""
    leave_if_child()
    if hasattr(type(answer), "__await__"):
        close = getattr(answer, "close", None)
        if close is not None:  # otherwise the interpreter warns that the coroutine was never awaited
            close()
        raise TypeError(f"{hook} returned {type(answer).__name__} {answer!r}, which is never awaited: define it with `async def`")
    return bool(answer)
