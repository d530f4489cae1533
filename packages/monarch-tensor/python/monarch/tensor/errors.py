"""The exceptions of `monarch.tensor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monarch.actor import MonarchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monarch.tensor._protocol.frames import Frame


class TensorMeshError(MonarchError, RuntimeError):
    """What a mesh tensor cannot do: give its data in silence, take a shape from data, follow an operator without a fake implementation."""

    __module__ = "monarch.tensor"
    _default_code = "tensor_mesh"


class RemoteException(MonarchError, RuntimeError):
    """An operation failed on a worker, and its result, or one that was computed from it, was fetched.

    `exception` is what was raised there, `rank` the rank in the activated mesh, `host` the host's name, `operation` the operator or
    function. `controller_frames` are the lines of the program that issued it, innermost first; `worker_frames` the lines of the worker's
    traceback, outermost first.
    """

    __module__ = "monarch.tensor"
    _default_code = "tensor_remote"

    def __init__(
        self,
        exception: BaseException,
        rank: int,
        host: str,
        operation: str,
        controller_frames: Sequence[Frame] = (),
        worker_frames: Sequence[str] = (),
    ) -> None:
        self.exception = exception
        self.rank = rank
        self.host = host
        self.operation = operation
        self.controller_frames = tuple(controller_frames)
        self.worker_frames = tuple(worker_frames)
        super().__init__(self._text())
        self.args = (exception, rank, host, operation, self.controller_frames, self.worker_frames)

    def _text(self) -> str:
        error = f"{type(self.exception).__name__}: {self.exception}".rstrip(": ")
        lines = [f"A remote function has failed asynchronously on rank {self.rank}.", f"  {self.operation} on host {self.host}: {error}"]
        if self.controller_frames:
            lines.append("Issued by the controller at (innermost first):")
            lines += [f"  {frame}" for frame in self.controller_frames]
        if self.worker_frames:
            lines.append(f"Traceback of the worker of rank {self.rank}:")
            lines += [f"  {line}" for frame in self.worker_frames for line in frame.rstrip().splitlines()]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self._text()
