"""The actors that the other files of this folder call."""

from __future__ import annotations

from monarch.actor import Actor, Port, concurrent_endpoint, endpoint


class Sync(Actor):
    """Plain endpoints."""

    def __init__(self, start: int, *, label: str = "") -> None:
        self.value = start
        self.label = label

    @endpoint
    def add(self, amount: int, *, scale: float = 1.0) -> float:
        return self.value + amount * scale

    @endpoint
    def describe(self) -> str:
        return self.label

    @endpoint(instrument=False)
    def pair(self, key: str, value: int) -> tuple[str, int]:
        return key, value

    @endpoint
    def nothing(self) -> None: ...

    @endpoint
    def optional(self, *names: str, **sizes: int) -> list[str] | None:
        return [*names, *sizes] or None

    @endpoint(explicit_response_port=True)
    def later(self, answer: Port[str], delay: float) -> None:
        answer.send(str(delay))

    def plain(self, number: int) -> bytes:
        return bytes(number)

    def ported(self, answer: Port[int], number: int) -> None:
        answer.send(number)


class Async(Actor):
    """Coroutines: a caller gets their awaited results."""

    @endpoint
    async def add(self, amount: int) -> float:
        return float(amount)

    @endpoint(instrument=True)
    async def names(self) -> list[str]:
        return []

    @endpoint(explicit_response_port=True)
    async def later(self, answer: Port[bytes]) -> None:
        answer.send(b"")

    @concurrent_endpoint
    async def wait(self, seconds: float) -> str:
        return str(seconds)

    @concurrent_endpoint(instrument=False)
    async def wait_longer(self, seconds: float) -> int:
        return int(seconds)


class Lender(Actor):
    """Gets the meshes of others, and returns some."""

    def __init__(self, others: Sync) -> None:
        self.others = others

    @endpoint
    def lend(self) -> Sync:
        return self.others.slice(gpus=0)

    @endpoint
    def total(self, by_name: dict[str, Sync]) -> float:
        return sum(mesh.add.call_one(1).get() for mesh in by_name.values())
