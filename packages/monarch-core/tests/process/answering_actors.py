"""Actors whose endpoints are functions, and ones whose endpoints are coroutines: they answer, fail, or keep and pass on ports."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from monarch.actor import Actor, Port, current_rank, endpoint


def own_class() -> Any:
    class Stubborn(Exception):
        def __reduce__(self) -> Any:
            raise TypeError("stays here")

    return Stubborn


class _Keeping(Actor):
    """What the endpoints of both actors keep."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.ports: list[Port[Any]] = []
        self.refused: str | None = None


class Sync(_Keeping):
    @endpoint
    def rank(self) -> int:
        return current_rank().rank

    @endpoint
    def put(self, item: Any, /, times: int = 1, *, twice: bool = False) -> list[Any]:
        self.items += [item] * times * (2 if twice else 1)
        return self.items

    @endpoint
    def change(self, items: list[int]) -> list[int]:
        items.append(99)
        return items

    @endpoint
    def fail(self, text: str) -> None:
        raise ValueError(text)

    @endpoint
    def fail_on(self, *ranks: int) -> int:
        rank = current_rank().rank
        if rank in ranks:
            raise ValueError(f"rank {rank}")
        return rank

    @endpoint
    def exit_on(self, rank: int) -> int:
        if current_rank().rank == rank:
            raise SystemExit(3)
        return current_rank().rank

    @endpoint(explicit_response_port=True)
    def later(self, port: Port[int], n: int) -> str:
        self.ports.append(port)
        return "ignored"

    @endpoint
    def answer_now(self, value: int) -> None:
        for port in self.ports:
            port.send(value)
        self.ports.clear()

    def plain(self) -> int:
        return 1

    @endpoint(explicit_response_port=True)
    def from_thread(self, port: Port[int], n: int) -> None:
        threading.Thread(target=port.send, args=(n + current_rank().rank,)).start()

    @endpoint(explicit_response_port=True)
    def fail_through_port(self, port: Port[int]) -> None:
        port.exception(KeyError("through the port"))

    @endpoint(explicit_response_port=True)
    def fail_with_own_class(self, port: Port[int]) -> None:
        port.exception(own_class()("only here"))

    @endpoint(explicit_response_port=True)
    def pass_on(self, port: Port[Any], other: Any) -> None:
        other.deliver.broadcast(port, current_rank().rank)

    @endpoint
    def deliver(self, port: Port[Any], value: Any) -> None:
        port.send(("delivered", value))

    @endpoint(explicit_response_port=True)
    def twice(self, port: Port[int]) -> None:
        port.send(1)
        try:
            port.send(2)
        except RuntimeError as e:
            self.refused = str(e)

    @endpoint
    def refusal(self) -> str | None:
        return self.refused


class Async(_Keeping):
    @endpoint
    async def rank(self) -> int:
        return current_rank().rank

    @endpoint
    async def put(self, item: Any, /, times: int = 1, *, twice: bool = False) -> list[Any]:
        self.items += [item] * times * (2 if twice else 1)
        return self.items

    @endpoint
    async def change(self, items: list[int]) -> list[int]:
        items.append(99)
        return items

    @endpoint
    async def fail(self, text: str) -> None:
        raise ValueError(text)

    @endpoint
    async def fail_on(self, *ranks: int) -> int:
        rank = current_rank().rank
        if rank in ranks:
            raise ValueError(f"rank {rank}")
        return rank

    @endpoint
    async def exit_on(self, rank: int) -> int:
        if current_rank().rank == rank:
            raise SystemExit(3)
        return current_rank().rank

    @endpoint(explicit_response_port=True)
    async def later(self, port: Port[int], n: int) -> str:
        self.ports.append(port)
        return "ignored"

    @endpoint
    async def answer_now(self, value: int) -> None:
        for port in self.ports:
            port.send(value)
        self.ports.clear()

    @endpoint(explicit_response_port=True)
    async def from_thread(self, port: Port[int], n: int) -> None:
        threading.Thread(target=port.send, args=(n + current_rank().rank,)).start()

    @endpoint(explicit_response_port=True)
    async def fail_through_port(self, port: Port[int]) -> None:
        port.exception(KeyError("through the port"))

    @endpoint(explicit_response_port=True)
    async def fail_with_own_class(self, port: Port[int]) -> None:
        port.exception(own_class()("only here"))

    @endpoint(explicit_response_port=True)
    async def pass_on(self, port: Port[Any], other: Any) -> None:
        other.deliver.broadcast(port, current_rank().rank)

    @endpoint
    async def deliver(self, port: Port[Any], value: Any) -> None:
        port.send(("delivered", value))

    @endpoint(explicit_response_port=True)
    async def twice(self, port: Port[int]) -> None:
        port.send(1)
        try:
            port.send(2)
        except RuntimeError as e:
            self.refused = str(e)

    @endpoint
    async def refusal(self) -> str | None:
        return self.refused


BOTH = pytest.mark.parametrize("cls", [Sync, Async])
