"""Functions of the program on the workers: propagation, adverbs, arguments, and what may be given to `remote`."""

import math

import pytest
import torch

from monarch import tensor as mt
from monarch.actor import Channel, send
from monarch.tensor import RemoteException, TensorMeshError, call_on_shard_and_fetch, function_resolvers, inspect, no_mesh, remote, set_meta
from monarch.tensor._functions.resolvers import resolved
from monarch.tensor._protocol.meta import get_meta

pytestmark = pytest.mark.timeout(180)


@remote(propagate=lambda t, *_, **__: t)
def add(t, number=1.0, *, factor=1):
    return (t + number) * factor


@remote
def fails(*_):
    raise ValueError("not today")


@remote
def increase(t):
    t += 1


@remote(propagate="cached")
def stacked(pair, names):
    return {name: torch.stack(list(pair)) for name in names}


def test_shapes_by_a_function(mesh):
    out = add(torch.ones(2), 4)
    assert inspect(out).tolist() == [5, 5]
    assert inspect(add(mesh.rank("gpus") * torch.ones(2), factor=3), gpus=1).tolist() == [6, 6]


def test_shapes_by_the_function_itself(mesh):
    for kind in ("cached", "mocked"):
        calls = []

        def function(t, n, kind=kind, calls=calls):
            if isinstance(t, torch._subclasses.FakeTensor):
                calls.append(kind)
            return t.repeat(n)

        called = remote(function, propagate=kind)
        for n in (2, 3, 2):
            assert called(torch.ones(2), n).shape == (2 * n,)
        called(torch.ones(3), 2)
        assert len(calls) == 3


def test_pytrees_go_both_ways(mesh):
    out = stacked((torch.ones(2), torch.zeros(2)), ("a", "b"))
    assert sorted(out) == ["a", "b"] and inspect(out["b"]).tolist() == [[1, 1], [0, 0]]


def test_shapes_that_depend_on_data(mesh):
    nonzero = remote(lambda t: (t.nonzero(), "text", None), propagate="inspect")
    found, text, nothing = nonzero(torch.eye(3))
    assert found.shape == (3, 2) and text == "text" and nothing is None
    assert inspect(found + 1)[2].tolist() == [3, 3]


def test_no_tensors_without_propagation(procs):
    with procs.activate() as mesh:
        assert remote(lambda t: 3)(torch.ones(1)) is None
        remote(lambda t: t)(torch.ones(1))
        with pytest.raises(RemoteException, match="returned 1 tensors, and 0 were propagated"):
            mesh.check()


def test_results_of_another_shape_fail_the_call(procs):
    with procs.activate():
        wrong = remote(lambda t: t[:1], propagate=lambda t: t)
        with pytest.raises(RemoteException, match=r"returned float32\[1\] as its tensor 0, and float32\[2\] was propagated"):
            inspect(wrong(torch.ones(2)))
        wrong = remote(lambda t: t.double(), propagate=lambda t: t)
        with pytest.raises(RemoteException, match=r"float64\[2\]"):
            inspect(wrong(torch.ones(2)))
        wrong = remote(lambda t: t.to_sparse(), propagate=lambda t: t)
        with pytest.raises(RemoteException, match=r"returned float32\[2\] in the format torch.sparse_coo as its tensor 0"):
            inspect(wrong(torch.ones(2)))


@pytest.mark.parametrize(
    ("shape", "make"), [((3, 2), lambda t: t.t()), ((4, 2), lambda t: t[:, :2]), ((2, 2), lambda t: t[:, :1].expand(2, 2))]
)
def test_results_with_other_strides_keep_controller_views(mesh, shape, make):
    values = torch.arange(math.prod(shape) * 2.0)
    source = values[: math.prod(shape)].reshape(shape[::-1]) if shape == (3, 2) else values.reshape(shape[0], -1)
    given = remote(make, propagate=lambda t: torch.empty(shape))(source)
    with no_mesh.activate():
        expected = make(inspect(source))
    assert given.shape == shape and inspect(given.view(-1)).tolist() == expected.reshape(-1).tolist()
    given.view(-1)[0] = 7.0
    assert inspect(given)[0, 0] == 7.0 and inspect(given).flatten()[1:].tolist() == expected.flatten()[1:].tolist()


def test_import_paths(mesh):
    assert inspect(remote("torch.relu", propagate=lambda t: t)(-torch.ones(2))).tolist() == [0, 0]
    assert inspect(remote("torch.nonzero", propagate="inspect")(torch.ones(2))).tolist() == [[0], [1]]


def test_missing_import_path_is_named(procs):
    with procs.activate():
        for path in ("torch.no_such", "no_such_module.f"):
            with pytest.raises(RemoteException, match=path.replace(".f", "").replace("torch.", "")):
                inspect(remote(path, propagate=lambda: torch.ones(1))())


def test_values_by_adverbs(mesh):
    where = remote(lambda rank: (int(rank), "text"))
    rank = mesh.rank("gpus")
    assert list(where.call(rank).get().values()) == [(0, "text"), (1, "text")]
    assert sorted(f.get()[0] for f in where.stream(rank)) == [0, 1]
    assert where.choose(rank).get()[0] in (0, 1)
    assert call_on_shard_and_fetch(where, rank, shard={"gpus": 1}).get()[0] == 1
    assert call_on_shard_and_fetch(lambda r: int(r) + 5, rank).get() == 5
    with pytest.raises(ValueError, match="exactly 1 rank"):
        where.call_one(rank)
    with mesh.slice(gpus=1).activate() as one:
        assert where.call_one(one.rank(())).get() == (0, "text")
    with pytest.raises(KeyError, match="no dimension 'hosts'"):
        call_on_shard_and_fetch(where, rank, shard={"hosts": 1})


def test_broadcast_and_rref(mesh):
    t = torch.zeros(2)
    remote(lambda t: t.add_(1)).broadcast(t)
    assert inspect(t).tolist() == [1, 1]
    assert inspect(add.rref(t)).tolist() == [2, 2]


def test_failures_of_adverbs(procs):
    with procs.activate():
        for ask in (fails.call, fails.choose, lambda: call_on_shard_and_fetch(fails)):
            with pytest.raises(RemoteException, match="not today") as e:
                ask().get()
            assert isinstance(e.value.exception, ValueError)
        poisoned = torch.linalg.cholesky(-torch.eye(2))
        with pytest.raises(RemoteException, match="cholesky"):
            remote(lambda t: 1).call(poisoned).get()
        with pytest.raises(RemoteException, match="cholesky"):
            inspect(add(poisoned))


def test_process_groups_arrive_as_those_of_torch(mesh):
    group = mesh.process_group("gpus")

    @remote(propagate="mocked")
    def summed(t, group):
        if group.rank() + group.size() and not isinstance(t, torch._subclasses.FakeTensor):
            torch.distributed.all_reduce(t, group=group)
        return t + group.size()

    assert inspect(summed(mesh.rank("gpus") + 0, group), gpus=1) == 3
    group.drop()
    with pytest.raises(TypeError, match="was dropped"):
        summed(torch.ones(1), group)


def test_send_brings_each_rank_to_a_port(mesh):
    port, receiver = Channel.open()
    ranks = receiver.ranked()
    send(add, (mesh.rank("gpus"),), {"factor": 10}, port)
    assert sorted((rank, value.item()) for rank, value in (ranks.recv().get() for _ in range(2))) == [(0, 10), (1, 20)]
    send(add, (mesh.rank("gpus"),), {"factor": 10}, port=port, selection="choose")
    rank, value = ranks.recv().get()
    assert value.item() == 10 * (rank + 1)
    send(fails, (1,), {}, port=port)
    for _ in range(2):
        with pytest.raises(RemoteException, match="not today"):
            receiver.recv().get()
    counted = torch.zeros(2)
    for selection in ("all", "choose"):
        send(increase, (counted,), {}, selection=selection)
    assert sorted(inspect(counted, gpus=rank)[0].item() for rank in range(2)) == [1.0, 2.0]
    with pytest.raises(ValueError, match="selection must be"):
        send(add, (1,), {}, selection="most")


def test_remote_function_needs_a_mesh():
    for call in (add, fails, add.call, fails.broadcast):
        with pytest.raises(TensorMeshError, match="requires an active proc_mesh"):
            call(1)


def test_tensors_that_cannot_be_given(mesh):
    with mt.no_mesh.activate():
        local = torch.ones(2)
    for given, marker in ((local, "LOCAL_TENSOR"), (torch.ones(2, requires_grad=True), "REQUIRES_GRAD")):
        with pytest.raises(TypeError, match=marker):
            add(given)
        with pytest.raises(TypeError, match=marker):
            add.call([given])
    t = torch.ones(2)
    t.drop()
    with pytest.raises(TypeError, match="DROPPED"):
        add(t)
    captured = torch.ones(2)
    with pytest.raises(TypeError, match="cannot be pickled"):
        remote(lambda: captured, propagate=lambda: torch.ones(2))()


@pytest.mark.parametrize(
    ("function", "propagate", "error", "text"),
    [
        (3, None, TypeError, "expected a function or an import path"),
        ("function", None, ValueError, "has a module and a name"),
        (add, 3, ValueError, "expected a function, None, or one of"),
        (add, "other", ValueError, "expected a function, None, or one of"),
        ("torch.relu", "cached", ValueError, "the function is not on the controller"),
        ("torch.relu", "mocked", ValueError, "the function is not on the controller"),
    ],
)
def test_bad_remote_functions(function, propagate, error, text):
    with pytest.raises(error, match=text):
        remote(function, propagate=propagate)


def test_exception_of_propagation_reaches_the_caller(mesh):
    def no(t):
        raise LookupError("no shape")

    with pytest.raises(LookupError, match="no shape"):
        remote(lambda t: t, propagate=no)(torch.ones(1))


# Resolvers


class Named:
    """Something that is no function and stands for one."""

    def __init__(self, path):
        self.path = path


@pytest.fixture
def resolver():
    """Knows `Named`, after one that knows nothing."""
    before = list(function_resolvers)
    function_resolvers.extend([lambda _: None, lambda value: value.path if isinstance(value, Named) else None])
    yield
    function_resolvers[:] = before


def test_resolvers_turn_objects_into_paths(mesh, resolver):
    called = remote(Named("torch.relu"), propagate=lambda t: t)
    assert called.function == "torch.relu" and inspect(called(-torch.ones(2))).tolist() == [0, 0]
    assert call_on_shard_and_fetch(Named("os.getpid")).get() > 0


def test_resolvers_are_not_asked_for_functions(resolver):
    function_resolvers.insert(0, lambda _: "somewhere.else")
    for usual in ("torch.relu", test_resolvers_pass_other_objects_on, math.sqrt, [].append):
        assert resolved(usual) is usual
    assert resolved(Named("torch.relu")) == "somewhere.else"


def test_resolvers_pass_other_objects_on():
    assert resolved(3) == 3


def test_bad_resolvers(resolver):
    with pytest.raises(TypeError, match="expected an import path or None"):
        remote(Named(3))
    with pytest.raises(ValueError, match="has a module and a name"):
        remote(Named("relu"))
    with pytest.raises(TypeError, match="expected a function or an import path"):
        remote(object())


# Metadata


def test_metadata_are_of_the_innermost_block():
    assert get_meta() is None
    with set_meta("outer"):
        with pytest.raises(KeyError), set_meta({"step": 1}):
            assert get_meta() == {"step": 1}
            raise KeyError
        assert get_meta() == "outer"
    assert get_meta() is None


def test_names_of_the_package():
    for name in ("random", "builtins", "timer", "manual_seed", "set_meta", "OpaqueObject", "OpaqueModule", "opaque_method"):
        assert name in dir(mt) and getattr(mt, name) is not None
    assert mt.function_resolvers is function_resolvers
    with pytest.raises(AttributeError, match="no attribute 'no_such'"):
        _ = mt.no_such


def test_data_dependent_shape_names_operator_and_remedy(mesh):
    @remote(propagate="cached")
    def positive(t):
        return t[t > 0]

    with pytest.raises(TensorMeshError, match=r"aten\.nonzero.*depends on data.*remote\(propagate=\"inspect\"\)"):
        positive(torch.ones(3))


class Speechless(Exception):
    def __str__(self):
        raise RuntimeError("nothing to say")


@remote
def raises_what_has_no_text():
    raise Speechless


def test_exception_without_text_is_reported(mesh):
    with pytest.raises(RemoteException, match="Speechless, whose text cannot be shown"):
        raises_what_has_no_text.call().get(60)
    assert inspect(torch.ones(1)).item() == 1.0


@remote(propagate="mocked")
def through_collectives(group, t):
    import torch.distributed as dist

    dist.all_reduce(t, group=group)
    parts = [torch.empty_like(t) for _ in range(group.size())]
    dist.all_gather(parts, t, group=group)
    dist.all_gather_into_tensor(torch.empty(group.size() * t.numel()), t, group=group)
    return torch.cat(parts)


def test_collectives_of_mocked_groups_move_nothing(mesh):
    found = through_collectives(mesh.process_group("gpus"), torch.ones(3))
    assert found.shape == (6,)
    assert inspect(found).tolist() == [2.0] * 6
