"""Recordings as workers execute them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from monarch.tensor._protocol.commands import RELEASE, Segment

if TYPE_CHECKING:
    from monarch.tensor._protocol.commands import Replay


class Execution(Protocol):
    """What a replay needs of an executor: its table, its operations by stream, and its definitions."""

    table: dict[int, Any]
    operations: dict[int, int]
    steps: dict[int, Any]

    def run(self, segment: Segment, *, more: int) -> Any: ...


class Replayed:
    """A recording: its commands, with numbers of their own for what they make."""

    def __init__(self, executor: Execution, recording: Replay) -> None:
        self._executor = executor
        self._recording = recording

    def run(self, stream: int, inputs: list[Any], constants: list[Any]) -> list[Any]:
        executor, recording = self._executor, self._recording
        # Numbers of a recording are negative in the table: no command of the controller has them.
        table, number = executor.table, executor.operations[stream]
        for formal, value in zip(recording.formals, inputs, strict=True):
            table[formal] = value
        for _, code, values in recording.code:
            executor.run(Segment(stream, 0, number, list(code), list(values)), more=0)
        # A rank may have no result, for example of a reduction to a part of the mesh.
        results = [table.get(number) for number in recording.results]
        for _, code, _ in recording.code:
            _clear(executor, code)
        for formal in recording.formals:
            table.pop(formal, None)
        return results


def _clear(executor: Execution, code: tuple[int, ...]) -> None:
    at = 0
    while at < len(code):
        head = code[at]
        if head > 0:
            step = executor.steps[head]
            at += 1 + step.inputs
            for number in code[at : at + step.results]:
                executor.table.pop(number, None)
            at += step.results
        else:
            at += 2 + (code[at + 1] if head == RELEASE else 0)
