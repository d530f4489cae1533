"""Results of calls: value meshes that decode on access, private buffers, handles and ports inside results."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from monarch.actor import (
    Actor,
    ActorMesh,
    Buffer,
    Channel,
    FrozenBuffer,
    ProcMesh,
    ValueMesh,
    current_rank,
    endpoint,
    this_host,
    this_proc,
)


@pytest.fixture(scope="module")
def procs(faults):
    mesh = this_host().spawn_procs(per_host={"hosts": 2, "gpus": 2})
    yield mesh
    mesh.stop().get()


class Counted:
    """Counts its unpicklings in this process."""

    loads = 0

    def __init__(self, n: int) -> None:
        self.n = n

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        Counted.loads += 1


class Picky:
    """Can be unpickled only if its number is even."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if state["n"] % 2:
            raise LookupError(f"cannot load {state['n']}")


class Sync(Actor):
    def __init__(self) -> None:
        self.kept: Any = None

    @endpoint
    def rank(self) -> int:
        return current_rank().rank

    @endpoint
    def echo(self, value: Any) -> Any:
        return value

    @endpoint
    def counted(self) -> Counted:
        return Counted(current_rank().rank)

    @endpoint
    def picky(self) -> Picky:
        return Picky(current_rank().rank)

    @endpoint
    def same(self) -> list[int]:
        return [1]

    @endpoint
    def keep(self, value: Any) -> tuple[Any, bool]:
        self.kept = value
        writable = not memoryview(value).readonly
        if writable:
            value[0] = 77
        return bytes(value[:2]), writable

    @endpoint
    def child(self) -> Any:
        return {"child": this_proc().spawn("child", type(self)), "proc": this_proc()}

    @endpoint
    def port(self) -> Any:
        self.open, self.receiver = Channel.open()
        return self.open

    @endpoint
    def received(self) -> Any:
        return self.receiver.recv().get()


class Async(Actor):
    def __init__(self) -> None:
        self.kept: Any = None

    @endpoint
    async def rank(self) -> int:
        return current_rank().rank

    @endpoint
    async def echo(self, value: Any) -> Any:
        return value

    @endpoint
    async def counted(self) -> Counted:
        return Counted(current_rank().rank)

    @endpoint
    async def picky(self) -> Picky:
        return Picky(current_rank().rank)

    @endpoint
    async def same(self) -> list[int]:
        return [1]

    @endpoint
    async def keep(self, value: Any) -> tuple[Any, bool]:
        self.kept = value
        writable = not memoryview(value).readonly
        if writable:
            value[0] = 77
        return bytes(value[:2]), writable

    @endpoint
    async def child(self) -> Any:
        return {"child": this_proc().spawn("child", type(self)), "proc": this_proc()}

    @endpoint
    async def port(self) -> Any:
        self.open, self.receiver = Channel.open()
        return self.open

    @endpoint
    async def received(self) -> Any:
        return await self.receiver.recv()


BOTH = pytest.mark.parametrize("cls", [Sync, Async])


@pytest.fixture
def handle(procs, cls):
    return procs.spawn("work", cls)


@BOTH
def test_points_follow_the_called_shape(handle):
    values = handle.rank.call().get()
    assert dict(values.extent) == {"hosts": 2, "gpus": 2} and values.values() == [0, 1, 2, 3]
    assert values.item(hosts=1, gpus=0) == 2 and values.slice(hosts=1).values() == [2, 3]
    column = handle.slice(gpus=1).rank.call().get()
    assert [(str(p), v) for p, v in column.items()] == [("{'hosts': 0/2}", 0), ("{'hosts': 1/2}", 1)]
    tail = handle.flatten("rank").slice(rank=slice(1, None)).rank.call().get()
    assert [(p["rank"], v) for p, v in tail] == [(0, 0), (1, 1), (2, 2)]
    split = handle.flatten("rank").split(rank=("a", "b"), a=2).rank.call().get()
    assert dict(split.extent) == {"a": 2, "b": 2} and split.flatten("r").get(3) == 3


@BOTH
def test_values_decode_on_first_access_of_their_rank(handle):
    Counted.loads = 0
    values = handle.counted.call().get()
    assert Counted.loads == 0
    first = values.get(2)
    assert first.n == 2 and Counted.loads == 1
    assert values.get(2) is first and values[2] is first and values.slice(hosts=1).get(0) is first
    assert Counted.loads == 1
    assert [v.n for v in values.values()] == [0, 1, 2, 3] and Counted.loads == 4


@BOTH
def test_undecodable_value_raises_on_its_access_only(handle):
    values = handle.picky.call().get()
    assert values.get(0).n == 0 and values.get(2).n == 2
    for _ in range(2):
        with pytest.raises(LookupError, match="cannot load 3"):
            values.get(3)
    future = handle.slice(hosts=0).flatten("g").picky.stream()
    outcomes = [f.exception() for f in future]
    assert sorted(str(e) for e in outcomes) == ["None", "cannot load 1"]


@BOTH
def test_equal_answers_are_values_of_their_own(handle):
    values = handle.same.call().get()
    values.get(0).append(2)
    assert values.values() == [[1, 2], [1], [1], [1]]


@BOTH
def test_value_meshes_pickle_and_travel(handle):
    values = handle.rank.call().get()
    again = pickle.loads(pickle.dumps(values))
    assert isinstance(again, ValueMesh) and list(again.items()) == list(values.items())
    one = handle.flatten("rank").slice(rank=0)
    returned = one.echo.call_one(values).get()
    assert isinstance(returned, ValueMesh) and returned.item(hosts=1, gpus=1) == 3


@BOTH
@pytest.mark.parametrize("size", [1, 255, 256, 65_535, 65_536, 1_000_000])
def test_buffers_arrive_equal_and_of_the_same_type(handle, size):
    one = handle.flatten("rank").slice(rank=0)
    for data in (bytes(range(256)) * (size // 256) + b"x" * (size % 256), bytearray(b"y" * size)):
        back = one.echo.call_one([data, {"a": data}]).get()
        assert back == [data, {"a": data}] and type(back[0]) is type(data)


@BOTH
@pytest.mark.parametrize("size", [300, 100_000])
def test_received_buffers_are_private(handle, size):
    data = bytearray(b"ab" * size)
    answers = handle.keep.call(data).get().values()
    assert answers == [(b"Mb", True)] * 4 and data[:2] == b"ab"
    frozen = bytes(data)
    assert handle.keep.call(frozen).get().values() == [(b"ab", False)] * 4
    results = handle.echo.call(bytearray(data)).get()
    results.get(0)[0] = 1
    assert results.get(1)[:2] == b"ab"


@BOTH
def test_arguments_are_a_snapshot_of_large_buffers(handle):
    data = bytearray(b"a" * 2_000_000)
    future = handle.echo.call(data)
    data[:] = b"b" * len(data)
    later = handle.echo.call(memoryview(data).tobytes())
    del data
    assert all(set(v) == {ord("a")} for v in future.get().values())
    assert all(set(v) == {ord("b")} for v in later.get().values())


@BOTH
def test_arrays_are_writable_and_private(handle):
    numpy = pytest.importorskip("numpy")
    array = numpy.arange(100_000)
    future = handle.echo.call(array)
    array[:] = 0
    values = future.get()
    values.get(0)[:] = 5
    assert values.get(1)[7] == 7 and values.get(0)[7] == 5


@BOTH
def test_frozen_buffers_travel(handle):
    buffer = Buffer()
    assert buffer.write(b"x" * 1000) == 1000
    back = handle.flatten("rank").slice(rank=0).echo.call_one(buffer.freeze()).get()
    assert isinstance(back, FrozenBuffer) and bytes(back) == b"x" * 1000


@BOTH
def test_handles_in_results_are_references(handle):
    found = handle.child.call().get()
    child, proc = found.get(1)["child"], found.get(1)["proc"]
    assert isinstance(child, ActorMesh) and isinstance(proc, ProcMesh)
    assert child.echo.call_one("hello").get() == "hello"
    with pytest.raises(NotImplementedError):
        child.stop()
    with pytest.raises(ValueError):
        proc.stop()
    assert handle.flatten("rank").slice(rank=0).echo.call_one(handle).get() == handle


@BOTH
def test_handles_of_actors_travel_between_actors(procs, handle, cls):
    one = handle.flatten("rank").slice(rank=0)
    back = one.echo.call_one({"me": handle, "list": [handle.slice(hosts=1)]}).get()
    assert back["me"].rank.call().get().values() == [0, 1, 2, 3]
    assert dict(back["list"][0].rank.call().get().extent) == {"gpus": 2}


@BOTH
def test_ports_in_results(handle):
    ports = handle.port.call().get()
    for rank in range(4):
        ports.get(rank).send(("to", rank))
    assert handle.received.call().get().values() == [("to", r) for r in range(4)]


@BOTH
def test_classes_and_functions_of_the_caller_travel(handle):
    class Local:
        def __init__(self, n: int) -> None:
            self.n = n

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Local) and other.n == self.n

    factor = 3
    one = handle.flatten("rank").slice(rank=0)
    assert one.echo.call_one(Local(2)).get() == Local(2)
    assert one.echo.call_one(lambda n: n * factor).get()(2) == 6


@BOTH
def test_many_values_of_many_kinds(handle):
    one = handle.flatten("rank").slice(rank=0)
    cyclic: list[Any] = [1]
    cyclic.append(cyclic)
    back = one.echo.call_one(cyclic).get()
    assert back[0] == 1 and back[1] is back
    for value in (None, True, 2**100, 1.5, "ü" * 1000, b"", (), {1: {2: {3}}}, frozenset("ab"), range(5), slice(1, 2), Ellipsis, int):
        assert one.echo.call_one(value).get() == value
