"""Collectives in which one rank fails by itself: before the others can have their results, afterwards, and in between."""

import random

import pytest
import torch

from monarch.actor import this_host
from monarch.tensor import RemoteException, fetch_shard, inspect, remote

pytestmark = pytest.mark.timeout(180)
FEW = 6


@remote
def break_on(rank, name, method, after, which=1):
    """Has the next use of a method raise on the rank `which`, after it has done its work or in place of it."""
    from monarch.tensor._worker import collectives

    kind = getattr(collectives, name)
    original = getattr(kind, method)

    def fails(*args):
        setattr(kind, method, original)
        if after:
            original(*args)
        raise MemoryError("there is no room")

    if int(rank) == which and original.__name__ != fails.__name__:
        setattr(kind, method, fails)


def of_both(tensor):
    """What each rank has, or the text of why it has nothing."""
    found = []
    for rank in range(2):
        try:
            found.append(fetch_shard(tensor, gpus=rank).get(60).tolist())
        except RemoteException as e:
            found.append(str(e.exception))
    return found


def sums(mesh):
    return [of_both((torch.ones(2) * 10**n).reduce("gpus")) for n in range(FEW)]


EXPECTED = [[[2.0 * 10**n] * 2] * 2 for n in range(FEW)]


def test_rank_that_fails_after_a_reduction_fails_alone(mesh):
    break_on(mesh.rank("gpus"), "_Combining", "result", False)
    assert of_both(torch.ones(2).reduce("gpus", "avg")) == [[1.0, 1.0], "there is no room"]
    assert sums(mesh) == EXPECTED


@pytest.mark.parametrize(("reduction", "name"), [("sum", "_Combining"), ("stack", "_Stacking")])
def test_absent_rank_is_named_by_the_others(mesh, reduction, name):
    break_on(mesh.rank("gpus"), name, "__init__", False)
    first, second = of_both(torch.ones(2).reduce("gpus", reduction))
    assert first == "rank 1 could not take part: MemoryError: there is no room" and second == "there is no room"
    assert sums(mesh) == EXPECTED


@remote
def cut_on_1(rank):
    """Has the next collective of rank 1 begin with the loss of its connections."""
    from monarch.tensor._worker import collectives

    original = collectives._Combining.run

    def run(self):
        collectives._Combining.run = original
        self._group.pg.shutdown()
        raise MemoryError("there is no room")

    if int(rank) == 1:
        collectives._Combining.run = run


def test_disconnected_rank_is_named(mesh):
    assert sums(mesh) == EXPECTED
    cut_on_1(mesh.rank("gpus"))
    first, _ = of_both(torch.ones(2).reduce("gpus"))
    assert first.startswith("one of the ranks 1 has ended, or has lost its connection, in a collective: ")
    assert sums(mesh) == EXPECTED


def test_failed_rank_without_memory_blocks_no_other(mesh):
    @remote(propagate=lambda rank: torch.ones(2))
    def only_on_the_first(rank):
        if int(rank) == 1:
            raise ValueError("no data")
        return torch.ones(2)

    break_on(mesh.rank("gpus"), "_Combining", "__init__", False)
    first, second = of_both(only_on_the_first(mesh.rank("gpus")).reduce("gpus"))
    assert first.startswith("rank 1 could not take part") and second == "no data"
    assert sums(mesh) == EXPECTED


@pytest.mark.parametrize("name", ["_Combining", "_Stacking"])
def test_collectives_of_ranks_are_never_mixed(mesh, name):
    # One rank fails, the other succeeds and continues with another group.
    break_on(mesh.rank("gpus"), name, "run", True)
    first, second = of_both(torch.ones(2).reduce("gpus", "stack" if name == "_Stacking" else "sum"))
    # The flag after the data of "stack" is a collective too.
    assert second == "there is no room" and (first == [2.0, 2.0] if name == "_Combining" else isinstance(first, str))
    found = sums(mesh)
    for n, pair in enumerate(found):
        assert all(isinstance(value, str) or value == EXPECTED[n][0] for value in pair), found
    assert found[-3:] == EXPECTED[-3:]


@pytest.mark.parametrize(("method", "after"), [("__init__", False), ("run", True)])
def test_failed_receiver_fails_the_movement(mesh, method, after):
    one, other = mesh.slice(gpus=0), mesh.slice(gpus=1)

    def moved(number):
        with one.activate():
            return torch.full((2,), number).to_mesh(other)

    assert inspect(moved(1.0)).tolist() == [1.0, 1.0]
    break_on(mesh.rank("gpus"), "_Moving", method, after)
    failed = moved(2.0)
    with pytest.raises(RemoteException, match="there is no room"):
        inspect(failed)
    found = []
    for n in range(FEW):
        try:
            found.append(inspect(moved(float(n))).tolist())
        except RemoteException:
            found.append(None)
    assert all(value in (None, [n] * 2) for n, value in enumerate(found)), found
    assert found[-3:] == [[n] * 2 for n in range(FEW)][-3:]
    assert sums(mesh) == EXPECTED


BREAKS = (
    *(("_Combining", *how) for how in (("__init__", False), ("run", False), ("run", True), ("result", False))),
    *(("_Stacking", *how) for how in (("__init__", False), ("run", True))),
    *(("_Moving", *how) for how in (("__init__", False), ("run", False), ("run", True))),
)


@pytest.fixture(scope="module")
def three():
    found = this_host().spawn_procs({"gpus": 3})
    yield found
    found.stop().get(120)


@pytest.mark.parametrize("seed", [4, 7])
def test_collectives_that_fail_anywhere_are_wrong_nowhere(three, seed):
    chance = random.Random(seed)
    good = 0
    with three.activate() as mesh:
        for step in range(60):
            if chance.random() < 0.3:
                break_on(mesh.rank("gpus"), *chance.choice(BREAKS), which=chance.randrange(3))
            number, kind, size = float(step + 1), chance.choice(["sum", "avg", "stack", "max", "move"]), chance.choice([1, 40_000])
            if kind == "move":
                of, to = chance.sample(range(3), 2)
                with mesh.slice(gpus=of).activate():
                    result, ranks = torch.full((size,), number).to_mesh(mesh.slice(gpus=to)), [{}]
            else:
                result, ranks = torch.full((size,), number).reduce("gpus", kind), [{"gpus": rank} for rank in range(3)]
            if chance.random() < 0.5:
                continue
            for rank in ranks:
                try:
                    found = fetch_shard(result, **rank).get(60)
                except RemoteException:
                    continue
                assert (found == number * (3 if kind == "sum" else 1)).all(), (step, kind, rank)
                good += 1
    assert good >= 20
