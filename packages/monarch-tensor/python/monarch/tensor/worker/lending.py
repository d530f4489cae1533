"""Tensors between workers of two controllers, which have no process group in common.

The one that has a tensor keeps a copy of its bytes under a key. The one that needs it asks for the key, by a request between the processes;
core moves large answers from memory to memory.
"""

from __future__ import annotations

import pickle
import threading
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from monarch.extension import ask, member, reach
from monarch.tensor.worker.poison import PoisonedElsewhere, poison_of

if TYPE_CHECKING:
    from monarch.extension import HostId, ProcId, Request

REQUEST = "monarch.tensor.lend"

# The last byte of an answer: what the others are.
_DATA, _FAILURE = b"\0", b"\1"


class Lending:
    """What this process keeps for others. An entry goes with the last rank that takes it."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._entries: dict[str, tuple[bytes | bytearray, int]] = {}
        self._waiting: dict[str, list[Request]] = {}

    def lend(self, key: str, value: Any, takers: int) -> None:
        """Keeps the bytes of a tensor, or the failure that it is poisoned with, for so many ranks."""
        if not takers:
            return
        poison = poison_of(value)
        body = bytearray(pickle.dumps(poison.failure) + _FAILURE) if poison is not None else _bytes_of(value)
        with self._lock:
            waiting = self._waiting.pop(key, [])
            if takers > len(waiting):
                self._entries[key] = (body, takers - len(waiting))
            self._lock.notify_all()
        for request in waiting:
            request.answer(body)

    def take(self, key: str, proc: ProcId, host: HostId, layout: tuple[Any, ...]) -> Any:
        """The tensor that a process lends, when it has come so far. Raises the failure that it is poisoned with."""
        if proc == member().proc:
            with self._lock:
                self._lock.wait_for(lambda: key in self._entries)
                body = self._taken(key)
        else:
            reach(proc, host)
            body = ask(proc, REQUEST, key.encode()).get()
        view = memoryview(body)
        if bytes(view[-1:]) == _FAILURE:
            raise PoisonedElsewhere(pickle.loads(view[:-1]))
        shape, dtype, device = layout
        made = torch.empty(shape, dtype=dtype)
        if made.numel():
            made.view(-1).view(torch.uint8).copy_(torch.frombuffer(bytearray(view[:-1]), dtype=torch.uint8))
        return made.to(device)

    def answer(self, request: Request) -> bytes | bytearray | None:
        key = bytes(request.body).decode()
        with self._lock:
            if key in self._entries:
                return self._taken(key)
            request.defer()
            self._waiting.setdefault(key, []).append(request)
        return None

    def _taken(self, key: str) -> bytes | bytearray:
        body, left = self._entries.pop(key)
        if left > 1:
            self._entries[key] = (body, left - 1)
        return body


@cache
def lending() -> Lending:
    """That of this process."""
    return Lending()


def answer(request: Request) -> bytes | bytearray | None:
    """The handler of requests for what is lent."""
    return lending().answer(request)


def _bytes_of(tensor: Any) -> bytearray:
    local = tensor.detach().to("cpu").contiguous()
    body = bytearray(local.numel() * local.element_size() + 1)
    if local.numel():
        torch.frombuffer(body, dtype=torch.uint8, count=len(body) - 1).copy_(local.view(-1).view(torch.uint8))
    return body
