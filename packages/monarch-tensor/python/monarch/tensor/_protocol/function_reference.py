"""A function of the program, or the import path of one, as it travels to the workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class FunctionReference:
    """The base of `Remote`: a worker needs no more of it than its function."""

    def __init__(self, function: Callable[..., Any] | str) -> None:
        self.function = function
