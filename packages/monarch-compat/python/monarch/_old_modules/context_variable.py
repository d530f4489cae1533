"""The context of the running actor in the form of torchmonarch 0.7: an object with `get`, as a context variable has it."""

from __future__ import annotations

from monarch.actor import context, has_context

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NOTHING = object()


class ContextVariable:
    """Reads the context of `monarch.actor.context()`, without starting a client where there is none."""

    @staticmethod
    def get(default: Any = _NOTHING, /) -> Any:
        """The context of this thread or task, else `default`, else `LookupError`."""
        if has_context():
            return context()
        if default is _NOTHING:
            raise LookupError("there is no context here: monarch.actor.context() makes one")
        return default


variable = ContextVariable()
