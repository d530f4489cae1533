"""The actor that runs the function of a task in each process, and sends its lines to the flow.

The messages to the port are a level and a text, and None when the function has ended.
"""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Callable
from typing import Any

from monarch.actor import Actor, Port, current_rank, endpoint

Line = tuple[int, str]


class Runner(Actor):
    @endpoint
    def run(self, port: Port[Line | None], function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        def send(level: int, text: str) -> None:
            port.send((level, f"[{rank}] {text}"))

        rank = current_rank().rank
        handler, root = _Sending(send), logging.getLogger()
        level = root.level
        root.addHandler(handler)
        root.setLevel(logging.INFO)
        try:
            with contextlib.redirect_stdout(_Lines(send)) as printed:
                try:
                    return function(*args, **kwargs)
                finally:
                    printed.finish()
        finally:
            root.removeHandler(handler)
            root.setLevel(level)
            port.send(None)


class _Sending(logging.Handler):
    def __init__(self, send: Callable[[int, str], None]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        self._send(record.levelno, self.format(record))


class _Lines(io.TextIOBase):
    """A stream whose whole lines are sent."""

    def __init__(self, send: Callable[[int, str], None]) -> None:
        self._send = send
        self._rest = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._send(logging.INFO, line)
        return len(text)

    def finish(self) -> None:
        if self._rest:
            self.write("\n")
