"""What arrives in remote functions: containers of any kind, objects that cannot be unpickled, process groups that a rank does not join."""

import collections
import time
from pathlib import Path

import pytest
import torch
from torch.utils import _pytree

from monarch import tensor as mt
from monarch.actor import this_host
from monarch.tensor import RemoteException, fetch_shard, inspect, remote

pytestmark = pytest.mark.timeout(180)

Pair = collections.namedtuple("Pair", "first second")


class Batch:
    """A node of pytrees, which this module registers."""

    def __init__(self, x, y):
        self.x, self.y = x, y


_pytree.register_pytree_node(Batch, lambda b: ([b.x, b.y], None), lambda values, _: Batch(*values))


class NeverArrives(Exception):
    """Pickled by its arguments, of which its constructor takes two."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


@pytest.mark.parametrize(
    "make",
    [
        lambda t: collections.deque([t, 2]),
        lambda t: collections.OrderedDict(b=t, a=[2]),
        lambda t: collections.defaultdict(list, b=t, a=2.5),
        lambda t: Pair(t, {"deep": collections.deque([t, "text"])}),
        lambda t: [{"in": Pair(2, t)}, (t, None)],
        lambda t: t.max(0),
    ],
    ids=["deque", "OrderedDict", "defaultdict", "namedtuple", "list", "torch.max"],
)
def test_containers_arrive_as_they_are(mesh, make):
    t = torch.arange(3.0).reshape(3, 1) + 1
    given = make(t)

    def shown(value):
        leaves, spec = _pytree.tree_flatten(value)
        return str(type(value)), str(spec), [v.tolist() if isinstance(v, torch.Tensor) else v for v in leaves]

    expected = shown(inspect(given))
    for found in (*remote(shown).call(given).get().values(), *remote(shown).call([given]).get().values()):
        assert found == expected or found[2] == expected[2] and found[0] == "<class 'list'>"
    total = remote(
        lambda *args: sum(v.sum() for v in _pytree.tree_leaves(args) if isinstance(v, torch.Tensor)), propagate=lambda *_: torch.ones(())
    )
    local = sum(v.sum().item() for v in _pytree.tree_leaves(inspect(given)) if isinstance(v, torch.Tensor))
    assert inspect(total(given)).item() == local


def test_nodes_of_the_program_arrive_too(mesh):
    def sums(batch, factor):
        return type(batch).__name__, (batch.x.sum() * batch.y * factor).item()

    for factor in (2, 3):
        assert remote(sums).call(Batch(torch.ones(4), 0.5), factor).get().item(gpus=1) == ("Batch", 2.0 * factor)
    doubled = remote(lambda batch: batch.x * batch.y, propagate=lambda batch: batch.x)
    assert inspect(doubled(Batch(torch.ones(2), 2))).tolist() == [2, 2]
    assert inspect(doubled(Batch(torch.ones(2), 3))).tolist() == [3, 3]


def test_undecodable_argument_fails_its_call(mesh):
    echo = remote(lambda error, x: x, propagate=lambda error, x: x)
    kept = torch.ones(2)
    with pytest.raises(RemoteException, match="missing 1 required positional argument"):
        inspect(echo(NeverArrives(1, 2), kept))
    assert inspect(echo("text", kept)).tolist() == [1, 1]


# Process groups


def of_both(tensor):
    found = []
    for rank in range(2):
        try:
            found.append(fetch_shard(tensor, gpus=rank).get(60).tolist())
        except RemoteException as e:
            found.append(f"{type(e.exception).__name__}: {e.exception}")
    return found


@remote(propagate=lambda x, *_: x)
def summed(x, group, rank, fails=None):
    if fails is not None and rank.item() == fails:
        raise ValueError("not today")
    torch.distributed.all_reduce(x, group=group)
    return x


@pytest.mark.parametrize("first", [True, False], ids=["no group yet", "a group"])
@pytest.mark.parametrize("how", ["poison", "raises"])
@pytest.mark.parametrize("which", [0, 1])
def test_absent_rank_blocks_no_other(mesh, first, how, which):
    group, rank = mesh.process_group("gpus"), mesh.rank("gpus")
    if not first:
        assert of_both(summed(torch.ones(1), group, rank)) == [[2.0]] * 2
    if how == "poison":
        broken = remote(lambda x, r: x / 0 if r.item() != which else 1 // 0, propagate=lambda x, r: x)(torch.ones(1), rank)
        found, own = of_both(summed(broken, group, rank)), "ZeroDivisionError: integer division or modulo by zero"
    else:
        found, own = of_both(summed(torch.ones(1), group, rank, which)), "ValueError: not today"
    # If this rank has not come to the group, the others wait in a request.
    assert found[which] == own and found[1 - which].endswith(f": rank {which} could not take part: {own}")
    assert of_both(summed(torch.ones(1), group, rank)) == [[2.0]] * 2


def test_calls_by_value_never_wait_for_absent_ranks(mesh):
    group, rank = mesh.process_group("gpus"), mesh.rank("gpus")
    summed_value = remote(lambda x, group, rank: summed.function(x, group, rank, 1).item())
    for _ in range(3):
        with pytest.raises(RemoteException, match="not today"):
            summed_value.call(torch.ones(1), group, rank).get(60)
        assert of_both(summed(torch.ones(1), group, rank)) == [[2.0]] * 2


def test_error_by_value_has_lines_of_both_programs(mesh):
    fails = remote(lambda: 1 // 0)
    for call in (fails.call, fails.choose, lambda: next(fails.stream()), lambda: mt.call_on_shard_and_fetch(fails)):
        with pytest.raises(RemoteException, match="division") as e:
            call().get(60)
        assert e.value.controller_frames[0].file == __file__
        assert len(e.value.worker_frames) == 1 and __file__ in e.value.worker_frames[0]


def test_groups_of_other_ranks_are_refused(procs, mesh):
    with mesh.slice(gpus=0).activate():
        with pytest.raises(ValueError, match="has other ranks than DeviceMesh.*activate the mesh of the group"):
            summed(torch.ones(1), mesh.process_group("gpus"), torch.zeros(()))


# The end


def test_stop_waits_for_running_functions(tmp_path: Path):
    own = this_host().spawn_procs({"gpus": 1})
    path = tmp_path / "noted"

    @remote
    def note(path):
        time.sleep(0.005)  # sleeps: so that all of them take longer than the stop
        with open(path, "a") as f:
            f.write("x")

    with own.activate() as mesh:
        inspect(torch.ones(1))
        for _ in range(50):
            note.broadcast(str(path))
        # Commands in the batch at the stop have not been sent.
        mesh.controller.flush()
    own.stop().get()
    assert path.stat().st_size == 50
