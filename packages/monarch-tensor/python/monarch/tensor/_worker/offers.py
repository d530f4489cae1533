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
from monarch.tensor._worker.poison import PoisonedElsewhere, poison_of

if TYPE_CHECKING:
    from monarch.extension import HostId, ProcId, Request

REQUEST = "monarch.tensor.offer"

# The last byte of an answer: the kind of the other bytes.
_DATA, _FAILURE = b"\0", b"\1"


class Offers:
    """What this process keeps for others. An entry goes with the last rank that pulls it."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._entries: dict[str, tuple[bytes, int]] = {}
        self._waiting: dict[str, list[Request]] = {}

    def offer(self, key: str, value: Any, takers: int) -> None:
        """Keeps the bytes of a tensor, or the failure that it is poisoned with, for so many ranks."""
        if not takers:
            return
        poison = poison_of(value)
        body = pickle.dumps(poison.failure) + _FAILURE if poison is not None else _bytes_of(value)
        with self._lock:
            waiting = self._waiting.pop(key, [])
            if takers > len(waiting):
                self._entries[key] = (body, takers - len(waiting))
            self._lock.notify_all()
        for request in waiting:
            request.answer(body)

    def pull(self, key: str, source: tuple[ProcId, HostId], layout: tuple[Any, ...]) -> Any:
        """The tensor that a process offers, when it has come so far. Raises the failure that it is poisoned with."""
        proc, host = source
        if proc == member().proc:
            with self._lock:
                self._lock.wait_for(lambda: key in self._entries)
                body = self._pulled(key)
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

    def answer(self, request: Request) -> bytes | None:
        key = bytes(request.body).decode()
        with self._lock:
            if key in self._entries:
                return self._pulled(key)
            request.defer()
            self._waiting.setdefault(key, []).append(request)
        return None

    def _pulled(self, key: str) -> bytes:
        body, left = self._entries.pop(key)
        if left > 1:
            self._entries[key] = (body, left - 1)
        return body


@cache
def offers() -> Offers:
    """That of this process."""
    return Offers()


def answer(request: Request) -> bytes | None:
    """The handler of requests for what is offered."""
    return offers().answer(request)


def _bytes_of(tensor: Any) -> bytes:
    local = tensor.detach().to("cpu").contiguous()
    if not local.numel():
        return _DATA
    return bytes(local.view(-1).view(torch.uint8).numpy()) + _DATA
