"""Arguments with a value for each rank, on one host, on several, and in a universe."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from eventually import eventually

from monarch._core.process.current import current_process
from monarch.actor import (
    Actor,
    Channel,
    Extent,
    Port,
    SupervisionError,
    ValueMesh,
    current_rank,
    endpoint,
    per_rank,
    send,
    this_host,
    this_proc,
)
from monarch.actor.testing import Universe, local_hosts

MIB = 1 << 20


class Keeper(Actor):
    def __init__(self, mine: Any = None, scale: int = 1) -> None:
        self.mine = mine
        self.scale = scale
        self.seen: list[Any] = []

    @endpoint
    def take(self, *args: Any, **kwargs: Any) -> Any:
        self.seen.append((args, kwargs))
        return current_rank().rank, args, kwargs

    @endpoint
    def made_of(self) -> Any:
        return self.mine, self.scale

    @endpoint
    def total(self, x: np.ndarray, scale: int = 1) -> int:
        total = int(x[0]) + int(x[-1]) + len(x)
        x[:] = 0  # the memory is the receiver's own
        return total * scale

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def notes(self) -> list[Any]:
        return self.seen

    @endpoint
    def die_if(self, die: bool) -> int:
        if die:
            os.kill(os.getpid(), signal.SIGKILL)
        return current_rank().rank

    @endpoint(explicit_response_port=True)
    def by_port(self, port: Port[Any], x: Any) -> None:
        port.send(x)


class Asynchronous(Actor):
    @endpoint
    async def take(self, x: Any) -> Any:
        await asyncio.sleep(0)
        return x


def value_mesh(values: Any, **sizes: int) -> ValueMesh[Any]:
    return ValueMesh(Extent(list(sizes), list(sizes.values())).region.as_shape(), values)


def arrays(count: int, size: int) -> list[np.ndarray]:
    return [np.full(size, i, np.uint8) for i in range(count)]


@pytest.fixture(scope="class", params=["host", "hosts", "tree", "universe"])
def mesh(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Actors of shape hosts 3, gpus 2: on this host, on others, on a deep tree of others, and simulated."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "universe":
            with Universe() as universe:
                yield universe.hosts(3).spawn_procs(per_host={"gpus": 2}).spawn("keepers", Keeper)
        elif request.param == "host":
            with this_host().spawn_procs({"hosts": 3, "gpus": 2}) as procs:
                yield procs.spawn("keepers", Keeper)
        else:
            patch.setenv("MONARCH_CAST_FAN_OUT", "1" if request.param == "tree" else "16")
            with local_hosts(3) as hosts:
                yield hosts.spawn_procs({"gpus": 2}).spawn("keepers", Keeper)


class TestCall:
    def test_each_rank_gets_its_own_value(self, mesh: Any) -> None:
        got = mesh.take.call(per_rank("abcdef"), "same", key=per_rank(range(6)), both=2).get()
        assert got.sizes == {"hosts": 3, "gpus": 2}
        assert got.values() == [(i, ("abcdef"[i], "same"), {"key": i, "both": 2}) for i in range(6)]

    def test_value_mesh_is_repeated_by_name(self, mesh: Any) -> None:
        hosts, gpus = value_mesh("abc", hosts=3), value_mesh([10, 20], gpus=2)
        both = value_mesh(range(6), gpus=2, hosts=3)
        got = mesh.take.call(per_rank(hosts), per_rank(gpus), per_rank(both), per_rank(value_mesh(["all"]))).get()
        expected = [("abc"[h], 10 * (1 + g), g * 3 + h, "all") for h in range(3) for g in range(2)]
        assert [args for _, args, _ in got.values()] == expected

    @pytest.mark.parametrize("size", [1, 300, 70_000, 3 * MIB])
    def test_buffers_arrive_with_common_ones(self, mesh: Any, size: int) -> None:
        got = mesh.take.call(per_rank([b"%d" % i * size for i in range(6)]), b"c" * size, np.ones(size, np.uint8)).get()
        for rank, (own, common, ones) in enumerate(args for _, args, _ in got.values()):
            assert own == b"%d" % rank * size and common == b"c" * size and ones.sum() == size

    def test_arrays_are_writable_and_of_any_size(self, mesh: Any) -> None:
        values = [np.arange(1 + size, dtype=np.uint8) for size in (0, 9, 5000, 66_000, 200, 2 * MIB)]
        expected = [int(x[0]) + int(x[-1]) + len(x) for x in values]
        assert mesh.total.call(per_rank(values)).get().values() == expected
        assert [int(x[-1]) for x in values] == [(len(x) - 1) % 256 for x in values]

    def test_slices_and_one_rank(self, mesh: Any) -> None:
        part = mesh.slice(gpus=1)
        got = part.take.call(per_rank(value_mesh("xyz", hosts=3))).get()
        assert (got.sizes, [args for _, args, _ in got.values()]) == ({"hosts": 3}, [("x",), ("y",), ("z",)])
        one = mesh.slice(hosts=2, gpus=0)
        assert [args for _, args, _ in one.take.call(per_rank(["only"])).get().values()] == [("only",)]

    def test_mesh_without_ranks(self, mesh: Any) -> None:
        none = mesh.slice(hosts=slice(0, 0))
        assert none.take.call(per_rank([])).get().values() == []
        assert list(none.take.stream(per_rank([]))) == []
        none.take.broadcast(per_rank([]))

    def test_stream_and_broadcast(self, mesh: Any) -> None:
        answers = [answer.get() for answer in mesh.take.stream(per_rank(range(10, 16)))]
        assert sorted(answers) == [(rank, (10 + rank,), {}) for rank in range(6)]
        mesh.take.broadcast(per_rank(range(20, 26)))
        assert [notes[-1][0] for notes in mesh.notes.call().get().values()] == [(20 + rank,) for rank in range(6)]

    def test_endpoint_that_answers_by_a_port(self, mesh: Any) -> None:
        assert mesh.by_port.call(per_rank("abcdef")).get().values() == list("abcdef")

    def test_results_go_to_the_next_call(self, mesh: Any) -> None:
        out = mesh.take.call(per_rank(range(6))).get().map(lambda result: result[1][0] * 2)
        assert [args for _, args, _ in mesh.take.call(per_rank(out)).get().values()] == [(2 * i,) for i in range(6)]

    def test_order_with_other_messages(self, mesh: Any) -> None:
        for i in range(30):
            mesh.take.broadcast(per_rank([(i, rank) for rank in range(6)]))
            mesh.take.broadcast((i, "all"))
        for rank, notes in enumerate(mesh.notes.call().get().values()):
            assert [args[0] for args, _ in notes[-60:]] == [(i, who) for i in range(30) for who in (rank, "all")]

    def test_one_object_for_several_ranks_is_pickled_once(self, mesh: Any) -> None:
        counted, other = Counted(), Counted()
        mesh.take.call(per_rank([counted] * 5 + [other])).get()
        assert (counted.pickled, other.pickled) == (1, 1)
        common = Counted()
        mesh.take.call(common, per_rank([1] * 6), x=common).get()
        assert common.pickled == 1


class Counted:
    def __init__(self) -> None:
        self.pickled = 0

    def __reduce__(self) -> Any:
        self.pickled += 1
        return (str, ("counted",))


class Calling:
    """Calls actors when it is pickled."""

    def __init__(self, mesh: Any) -> None:
        self.mesh = mesh

    def __reduce__(self) -> Any:
        got = self.mesh.take.call(per_rank(range(6))).get()
        return (int, (sum(args[0] for _, args, _ in got.values()),))


class TestRefusals:
    def test_wrong_number_of_values(self, mesh: Any) -> None:
        with pytest.raises(
            ValueError, match=r"^keepers\.take\(\): per_rank argument 1 does not fit: it has 5 values, and the mesh has 6 ranks"
        ):
            mesh.take.call(0, per_rank(range(5)))
        with pytest.raises(ValueError, match=r"per_rank argument 'x' does not fit: .*{cpus: 2}, .* 'cpus' .*{hosts: 3, gpus: 2}"):
            mesh.take.broadcast(x=per_rank(value_mesh([1, 2], cpus=2)))
        with pytest.raises(ValueError, match="does not fit dimension 'gpus'"):
            mesh.take.stream(per_rank(value_mesh(range(3), gpus=3)))

    def test_calls_of_one_actor(self, mesh: Any) -> None:
        one = mesh.slice(hosts=0, gpus=0)
        for call in (one.take.call_one, one.take.choose, mesh.take.choose):
            with pytest.raises(TypeError, match=r"^keepers\.take\(\): per_rank\(\.\.\.\) has a value for each rank, .* one receiver"):
                call(per_rank([1]))
        with pytest.raises(TypeError, match="one receiver"):
            send(mesh.take, (per_rank([1]),), {}, None, "choose")

    def test_argument_within_a_list(self, mesh: Any) -> None:
        for args in (([per_rank(range(6))],), (per_rank(range(6)), {"k": per_rank(range(6))}), (per_rank([per_rank([1])] * 6),)):
            with pytest.raises(TypeError, match="is within another object"):
                mesh.take.call(*args)

    def test_value_that_cannot_be_pickled_names_its_rank(self, mesh: Any) -> None:
        before = mesh.notes.call().get().map(len).values()
        with pytest.raises(TypeError, match="cannot pickle") as caught:
            mesh.take.call(1, x=per_rank([0, 1, 2, {"lock": threading.Lock()}, 4, 5]))
        assert "in the value of rank 3 {'hosts': 1, 'gpus': 1} of per_rank argument 'x'" in caught.value.__notes__
        assert mesh.notes.call().get().map(len).values() == before

    def test_value_mesh_with_an_error(self, mesh: Any) -> None:
        class Faulty(list[int]):
            def __getitem__(self, i: Any) -> Any:
                raise LookupError("no value")

        with pytest.raises(LookupError) as caught:
            mesh.take.call(per_rank(Faulty(range(6))))
        assert caught.value.__notes__ == ["in the value of rank 0 {'hosts': 0, 'gpus': 0} of per_rank argument 0"]

    def test_pickling_that_calls_actors(self, mesh: Any) -> None:
        got = mesh.take.call(per_rank([Calling(mesh) for _ in range(6)])).get()
        assert [args for _, args, _ in got.values()] == [(15,)] * 6


@pytest.mark.parametrize("elsewhere", [False, True])
def test_spawn_gives_each_actor_its_own_arguments(elsewhere: bool) -> None:
    with local_hosts(1) as hosts, (hosts.slice(hosts=0) if elsewhere else this_host()).spawn_procs({"gpus": 3}) as procs:
        keepers = procs.spawn("keepers", Keeper, per_rank(["a", "b", "c"]), scale=per_rank(value_mesh([1, 2, 3], gpus=3)))
        assert keepers.made_of.call().get().values() == [("a", 1), ("b", 2), ("c", 3)]
        large = procs.spawn("large", Keeper, per_rank(arrays(3, MIB)), 7)
        assert [(int(x[0]), len(x), scale) for x, scale in large.made_of.call().get().values()] == [(i, MIB, 7) for i in range(3)]
        with pytest.raises(ValueError, match=r"^spawn of .*Keeper: per_rank argument 0 does not fit: it has 2 values"):
            procs.spawn("few", Keeper, per_rank([1, 2]))
        part = procs.slice(gpus=slice(1, 3)).spawn("part", Keeper, per_rank("xy"))
        assert part.made_of.call().get().values() == [("x", 1), ("y", 1)]


def test_async_actor_and_actors_of_this_process() -> None:
    with this_host().spawn_procs({"gpus": 2}) as procs:
        assert procs.spawn("asynchronous", Asynchronous).take.call(per_rank([1, 2])).get().values() == [1, 2]
    own = this_proc().spawn("own", Keeper, per_rank(["mine"]))
    assert own.made_of.call().get().values() == [("mine", 1)]
    assert own.total.call(per_rank(arrays(1, MIB)), scale=2).get().values() == [2 * MIB]
    own.stop().get()


def test_answers_go_to_a_port() -> None:
    with this_host().spawn_procs({"gpus": 3}) as procs:
        keepers = procs.spawn("keepers", Keeper)
        port, receiver = Channel[Any].open()
        send(keepers.take, (per_rank(range(3)),), {}, port)
        assert sorted(receiver.recv().get() for _ in range(3)) == [(rank, (rank,), {}) for rank in range(3)]


class Caller(Actor):
    @endpoint
    def call(self, keepers: Any, size: int) -> list[Any]:
        got = keepers.take.call(per_rank([bytes([i]) * size for i in range(6)]), "same").get()
        return [(args[0][0], len(args[0]), args[1]) for _, args, _ in got.values()]


@pytest.mark.parametrize("size", [10, 2 * MIB])
def test_actor_calls_with_values(size: int) -> None:
    with local_hosts(3) as hosts:
        keepers = hosts.spawn_procs({"gpus": 2}).spawn("keepers", Keeper)
        for place in (this_host(), hosts.slice(hosts=1)):
            with place.spawn_procs({"procs": 1}) as procs:
                caller = procs.spawn("caller", Caller)
                assert caller.call.call_one(keepers, size).get() == [(i, size, "same") for i in range(6)]


@pytest.mark.parametrize("size", [1, 4 * MIB])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_death_of_a_rank_spares_other_values(size: int, elsewhere: bool) -> None:
    with local_hosts(2) as hosts:
        place = hosts if elsewhere else this_host()
        keepers = place.spawn_procs({"gpus": 4}).spawn("keepers", Keeper)
        count = keepers.size()
        dead = keepers.die_if.stream(per_rank([rank == 1 for rank in range(count)]))
        outcomes = [answer.exception() for answer in dead]
        assert [type(e) for e in outcomes if e is not None] == [SupervisionError]
        others = [rank for rank in range(count) if rank != 1]
        with pytest.raises(SupervisionError):
            keepers.take.call(per_rank([b"x" * size] * count)).get()
        live = keepers.flatten("all").slice(all=slice(2, None))
        got = live.take.call(per_rank([bytes([rank]) * size for rank in others[1:]])).get()
        assert [args[0] == bytes([rank]) * size for rank, (_, args, _) in zip(others[1:], got.values(), strict=True)] == [True] * (
            count - 2
        )


@pytest.mark.parametrize("elsewhere", [False, True])
def test_rank_that_dies_with_parts_on_their_way(elsewhere: bool) -> None:
    with local_hosts(1) as hosts, (hosts if elsewhere else this_host()).spawn_procs({"gpus": 4}) as procs:
        keepers = procs.spawn("keepers", Keeper)
        pid = keepers.slice(gpus=1).pid.call_one().get()
        os.kill(pid, signal.SIGSTOP)
        answers = keepers.total.stream(per_rank(arrays(4, 16 * MIB)))
        assert sorted(next(answers).get() for _ in range(3)) == [16 * MIB + 2 * rank for rank in (0, 2, 3)]
        os.kill(pid, signal.SIGKILL)
        assert isinstance(next(answers).exception(), SupervisionError)


def reserved() -> int:
    """The number of bytes of shared memory that this process has for large parts."""
    return current_process().native.stats()[1]


def test_parts_of_dropped_calls_are_freed() -> None:
    async def main() -> None:
        with this_host().spawn_procs({"gpus": 3}) as procs:
            keepers = procs.spawn("keepers", Keeper)
            for _ in range(20):
                task = asyncio.ensure_future(asyncio.wait_for(keepers.total.call(per_rank(arrays(3, 8 * MIB))), None))
                await asyncio.sleep(0)
                task.cancel()
            half = keepers.total.stream(per_rank(arrays(3, 8 * MIB)))
            await next(half)
            del half
            assert (await keepers.total.call(per_rank(arrays(3, 8 * MIB)))).values() == [8 * MIB + 2 * i for i in range(3)]

    asyncio.run(main())
    # Without releases the 22 calls would use 528 MiB.
    eventually("the blocks of all messages are free", reserved, lambda size: size <= 192 * MIB)
