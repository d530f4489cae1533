"""The steps of `monarch.tensor._autograd.grad`: their order, memory and errors; and functions with a backward of their own."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from gradients import VERSION, check, incremental, leaf
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from monarch.tensor import inspect, no_mesh
from monarch.tensor._autograd import grad
from monarch.tensor._autograd.grad import grad_function, grad_generator, gradient_execution_order


class Recorded(TorchDispatchMode):
    """The names of the operations, in order, and the threads that issued them."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.threads: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func.overloadpacket.__name__))
        self.threads.add(threading.get_ident())
        return func(*args, **(kwargs or {}))


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, factor: int, x: Any, unused: Any, y: Any) -> Any:
        ctx.save_for_backward(x, y)
        ctx.factor = factor
        positions = torch.arange(3)
        ctx.mark_non_differentiable(positions)
        return x * y * factor, positions, x + y

    @staticmethod
    def backward(ctx: Any, product: Any, positions: Any, total: Any) -> Any:
        x, y = ctx.saved_tensors
        return None, product * y * ctx.factor + total, None, product * x * ctx.factor + total, None


class Watched(torch.autograd.Function):
    """Identity that notes when its backward runs."""

    @staticmethod
    def forward(ctx: Any, x: Any, name: str, log: list[str]) -> Any:
        ctx.name, ctx.log = name, log
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        ctx.log.append(ctx.name)
        return gradient, None, None


def model() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.Linear(4, 8), layer, nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2)).double()


# --- order


@incremental
def test_each_step_runs_what_its_gradient_needs() -> None:
    log: list[str] = []
    weights = [leaf(3, seed=i) for i in range(3)]
    value = torch.ones(3, dtype=torch.float64)
    for i, weight in enumerate(weights):
        value = Watched.apply(value * Watched.apply(weight, f"weight {i}", log), f"value {i}", log)
    gradients = grad_generator(value.sum(), reversed(weights))
    assert log == []
    seen = []
    for _ in gradients:
        seen.append(list(log))
        log.clear()
    assert seen == [["value 2", "weight 2"], ["value 1", "weight 1"], ["value 0", "weight 0"]]


@incremental
def test_nodes_that_no_gradient_needs_do_not_run() -> None:
    log: list[str] = []
    a, b = leaf(3), leaf(3, seed=1)
    total = (Watched.apply(a, "a", log) * Watched.apply(b, "b", log)).sum()
    list(grad_generator([total, Watched.apply(a.exp().sum(), "other", log)], [b]))
    assert log == ["b"]


def test_execution_order_is_that_of_torchmonarch() -> None:
    t, unused = leaf(3, 3), leaf(3)
    w1, w2, w3 = (leaf(3, 3, seed=i) for i in range(1, 4))
    a = torch.relu(torch.relu(t @ w1) @ w2)
    b = torch.relu(a @ w3)
    std, _ = torch.std_mean(b)
    assert gradient_execution_order([std + std], [w2, w3, w1, b]) == [3, 1, 0, 2]
    assert gradient_execution_order(std, [unused, std, w1]) == [1, 2, 0]


def test_execution_order_is_that_of_the_engine() -> None:
    net = model()
    parameters = list(net.parameters())
    log: list[int] = []
    handles = [parameter.register_hook(lambda _, i=i: log.append(i)) for i, parameter in enumerate(parameters)]
    loss = net(leaf(3, 5, 4).detach()).square().mean()
    order = gradient_execution_order(loss, parameters)
    loss.backward()
    for handle in handles:
        handle.remove()
    assert order == log


# --- errors and memory


def test_arguments_are_refused_at_the_call() -> None:
    a = leaf(2, 2)
    with pytest.raises(ValueError, match=r"roots\[1\] has shape \(2, 2\), and no gradient is given"):
        grad_generator([a.sum(), a * 2], a)
    with pytest.raises(ValueError, match=r"roots\[0\] has shape \(\) and dtype torch.complex128"):
        grad_generator(torch.view_as_complex(a)[0], a)
    with pytest.raises(ValueError, match=r"grad_roots\[0\] has shape \(3,\), and roots\[0\] has shape \(2, 2\)"):
        grad_generator(a * 2, a, torch.ones(3))
    with pytest.raises(ValueError, match=r"2 gradients for 1 roots"):
        grad_generator(a.sum(), a, [None, None])
    with pytest.raises(ValueError, match=r"with_respect_to\[1\] does not require a gradient"):
        grad_generator(a.sum(), [a, torch.ones(2)])
    with pytest.raises(TypeError, match=r"with_respect_to\[0\] is int"):
        grad_generator(a.sum(), [1])
    with pytest.raises(TypeError, match=r"grad_roots\[0\] is float"):
        grad_generator(a.sum(), a, [1.0])


def test_saved_tensor_was_written_to() -> None:
    a = leaf(3)
    hidden = a.exp()
    total = (hidden * 2).sum()
    hidden.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        list(grad_generator(total, a))


def test_graph_is_used_twice() -> None:
    a = leaf(3)
    total = (a * a).sum()
    total.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        list(grad_generator(total, a))
    total = (a * a).exp().sum()
    list(grad_generator(total, a))
    for again in (grad_generator, torch.autograd.grad):
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            list(again(total, [a]))


class Tracked(torch.Tensor):
    pass


@incremental
def test_saved_tensors_are_freed_step_by_step() -> None:
    weights = [leaf(3, seed=i) for i in range(3)]
    value: Any = torch.ones(3, dtype=torch.float64)
    held = []
    for weight in weights:
        value = (value * weight).as_subclass(Tracked)
        held.append(weakref.ref(value))
    total = value.sum()
    del value
    counts = [sum(one() is not None for one in held) for _ in grad_generator(total, reversed(weights))]
    # Only the node above keeps a reference to each result, which it drops when it runs.
    assert counts == [1, 0, 0]


@incremental
def test_closed_generator_frees_its_gradients() -> None:
    log: list[Any] = []
    a, b = leaf(3), leaf(3, seed=1)
    hidden = a * 2
    hidden.register_hook(lambda gradient: log.append(weakref.ref(gradient)))
    seed = torch.ones(3, dtype=torch.float64)
    root = hidden * b + hidden.sin()
    log.append(weakref.ref(seed))
    generator = grad_generator(root, [b, hidden, a], [seed])
    del seed
    gc.disable()
    try:
        next(generator)
        next(generator)
        generator.close()
        assert [one() for one in log] == [None, None]
    finally:
        gc.enable()


def test_gradient_belongs_to_the_caller() -> None:
    a, b = leaf(3), leaf(3, seed=1)
    generator = grad_generator((a * b).exp().sum(), [b, a])
    first = weakref.ref(next(generator))
    assert VERSION < (2, 5) or first() is None
    assert len(list(generator)) == 1


@incremental
def test_gradient_may_be_changed_in_place() -> None:
    a, b, c = leaf(3), leaf(3, seed=1), leaf(3, seed=2)
    expected = torch.autograd.grad((((a * 2) + b) + c).exp().sum(), [c, b, a])
    found = []
    for gradient in grad_generator((((a * 2) + b) + c).exp().sum(), [c, b, a]):
        found.append(gradient.clone())
        gradient.zero_()
    torch.testing.assert_close(found, list(expected))


def test_operations_are_issued_by_the_calling_thread() -> None:
    a, b = leaf(3, 4), leaf(4, seed=1)
    with Recorded() as mode:
        total = ((a + b) * a).sum()
        mode.names.clear()
        for _ in grad_generator(total, [b, a]):
            pass
        expected = list(mode.names)
        total = ((a + b) * a).sum()
        mode.names.clear()
        torch.autograd.grad(total, [b, a])
        assert sorted(mode.names) == sorted(expected)
    assert mode.threads == {threading.get_ident()}


class Wrapped(torch.Tensor):
    """A tensor without memory of its own, as a mesh tensor; the values are on another one."""

    values: torch.Tensor

    @staticmethod
    def __new__(cls, values: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=values.dtype, device="meta")

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def values(tree: Any) -> Any:
            return tree_map(lambda one: one.values if isinstance(one, Wrapped) else one, tree)

        names = {name: value for name, value in values(kwargs or {}).items() if name != "device"}
        return tree_map(lambda one: Wrapped(one) if isinstance(one, torch.Tensor) else one, func(*values(args), **names))


@incremental
def test_tensors_without_memory() -> None:
    parts = [leaf(3, 4).detach(), leaf(4, 4, seed=1).detach(), leaf(4, seed=2).detach()]

    def loss(x: Any, weight: Any, bias: Any) -> Any:
        hidden = (x @ weight + bias).tanh()
        product, _, total = Double.apply(3, hidden, None, x)
        hidden = hidden.clone()
        hidden[0].mul_(bias)
        return (product + hidden).sum() + hidden.std()

    wrapped = [Wrapped(part).requires_grad_() for part in parts]
    plain = [part.clone().requires_grad_() for part in parts]
    expected = torch.autograd.grad(loss(*plain), plain)
    with Recorded() as mode:
        found = list(grad_generator(loss(*wrapped), wrapped))
    torch.testing.assert_close([one.values for one in found], list(expected))
    assert mode.threads == {threading.get_ident()}


# --- grad_function


@contextlib.contextmanager
def entered(log: list[str], name: str) -> Iterator[None]:
    log.append(f"enter {name}")
    yield
    log.append(f"exit {name}")


@grad_function
def scaled(x: Any, factor: Any) -> Any:
    def backward(gradient: Any) -> Any:
        return gradient * factor, None

    return x * factor, backward


def test_function_with_a_gradient_for_each_argument() -> None:
    a = leaf(3)
    assert scaled.__name__ == "scaled"
    for gradients in (torch.autograd.grad, grad_generator):
        found = next(iter(gradients((scaled(a, 3) * a).sum(), [a])))
        torch.testing.assert_close(found, (6 * a).detach())


def test_function_of_pytrees() -> None:
    seen: list[Any] = []

    @grad_function
    def mixed(pair: Any, *, name: str, last: Any) -> Any:
        assert not torch.is_grad_enabled() and name == "n"
        x, y = pair["x"], pair["y"]
        result = {"product": x * y, "name": name, "rest": [last * 2, (x > 0).long()]}

        def backward(product: Any, rest: Any, positive: Any) -> Any:
            seen.append((product, rest, positive))
            return product * y, product * x, rest * 2

        return result, backward

    a, b, c = leaf(3), leaf(3, seed=1), leaf(2, seed=2)
    result = mixed({"x": a, "y": b}, name="n", last=c)
    assert result["name"] == "n" and not result["rest"][1].requires_grad
    torch.testing.assert_close(result["product"], a * b)
    check([result["product"].sum(), result["rest"][0].sum()], [a, b, c])
    found = list(grad_generator(result["product"].sum(), [b, c]))
    torch.testing.assert_close(found, [a.detach(), torch.zeros(2, dtype=torch.float64)])
    assert len(seen) == 3
    constants = mixed({"x": torch.ones(3), "y": torch.ones(3)}, name="n", last=torch.ones(2))
    assert not constants["product"].requires_grad


def test_function_returns_its_argument() -> None:
    @grad_function
    def same(x: Any) -> Any:
        return x, lambda gradient: gradient * 5

    a = leaf(3)
    result = same(a)
    torch.testing.assert_close(result, a)
    torch.testing.assert_close(torch.autograd.grad(result.sum(), a)[0], torch.full((3,), 5.0, dtype=torch.float64))


def test_function_with_wrong_number_of_gradients() -> None:
    @grad_function
    def wrong(x: Any, y: Any, z: int) -> Any:
        return x + y, lambda gradient: gradient

    a = leaf(3)
    with pytest.raises(ValueError, match="the backward of wrong returned 1 gradients, and wrong was called with 2 tensors"):
        torch.autograd.grad(wrong(a, a, 1).sum(), a)


def test_backward_runs_in_the_context_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    names = iter(["first", "second"])

    def capture() -> Callable[[], contextlib.AbstractContextManager[None]]:
        name = next(names)
        return lambda: entered(log, name)

    monkeypatch.setattr(grad, "capture_context", capture)
    a = leaf(3)
    total = scaled(scaled(a, 2), 3).sum()
    assert log == []
    list(grad_generator(total, a))
    assert log == ["enter second", "exit second", "enter first", "exit first"]


@incremental
def test_nodes_run_in_the_context_of_their_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    depth: list[int] = []
    seen: list[Any] = []

    @contextlib.contextmanager
    def context(gradients: Any) -> Iterator[None]:
        assert all(isinstance(one, torch.Tensor) for one in gradients)
        depth.append(1)
        yield
        depth.pop()

    monkeypatch.setattr(grad, "node_context", context)
    a = leaf(3)
    result = scaled(a, 2)
    result.grad_fn.register_hook(lambda below, above: seen.append(list(depth)))
    for _ in grad_generator(result.sum(), a):
        assert depth == []
    assert seen == [[1]]


def test_result_that_its_backward_refers_to_is_freed() -> None:
    @grad_function
    def squashed(x: Any) -> Any:
        result = x.tanh()
        return result, lambda gradient: gradient * (1 - result * result)

    a = leaf(3)
    result = squashed(a)
    check(result.sum(), [a])
    node = weakref.ref(result.grad_fn)
    del result
    assert node() is None


def test_lstm_is_trained(mesh):
    """The CPU has an operator of its own for it, which keeps what its backward needs only where autograd is on."""
    lstm = torch.nn.LSTM(2, 3)
    out, _ = lstm(torch.ones(4, 1, 2))
    out.sum().backward()
    ours = [inspect(p.detach()) for p in lstm.parameters()], [inspect(p.grad) for p in lstm.parameters()]
    with no_mesh.activate():
        local = torch.nn.LSTM(2, 3)
        with torch.no_grad():
            for mine, value in zip(local.parameters(), ours[0], strict=True):
                mine.copy_(value)
        local(torch.ones(4, 1, 2))[0].sum().backward()
        for mine, grad in zip(local.parameters(), ours[1], strict=True):
            assert torch.allclose(mine.grad, grad, atol=1e-6)


def test_gradients_of_two_meshes_stay_on_their_meshes(mesh):
    one, other = mesh.slice(gpus=0), mesh.slice(gpus=1)

    @grad_function
    def move(x):
        return x.to_mesh(other), lambda g: g.to_mesh(one)

    with one.activate():
        w = torch.tensor([1.0, 2.0], requires_grad=True)
        moved = move(w * 2)
    with other.activate():
        v = torch.tensor([3.0, 4.0], requires_grad=True)
        loss = (moved * v).sum()
        loss.backward()
    assert (w.grad.mesh, v.grad.mesh) == (one, other)
    assert (inspect(w.grad).tolist(), inspect(v.grad).tolist()) == ([6.0, 8.0], [2.0, 4.0])
    with pytest.raises(TypeError, match="no_pair: a function of grad_function returns its result and its backward, not Tensor"):

        @grad_function
        def no_pair(x):
            return x

        with one.activate():
            no_pair(w)
