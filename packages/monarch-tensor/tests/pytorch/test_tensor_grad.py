"""Gradients of `monarch.tensor._autograd.grad` against those of `torch.autograd`, on local tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from gradients import VERSION, check, incremental, leaf
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.utils.checkpoint import checkpoint

from monarch.tensor._autograd.grad import grad_generator, gradient_execution_order


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


# --- values


def test_gradients_of_one_root() -> None:
    a, b = leaf(3, 4), leaf(4, 2, seed=1)
    hidden = (a @ b).tanh()
    check((hidden * hidden).sum(), [a, hidden, b])


def test_gradients_of_several_roots() -> None:
    a, b = leaf(3), leaf(3, seed=1)
    std, mean = torch.std_mean(a + b)
    check([std, mean, (a * a).sum()], [b, a])


def test_gradients_of_the_tests_of_torchmonarch() -> None:
    t = leaf(3, 3)
    w = [leaf(3, 2, seed=i) for i in range(3)]
    v = [leaf(2, 3, seed=i) for i in range(3, 6)]
    unused = leaf(3, 2)
    a = t
    for one, other in zip(w, v, strict=True):
        a = torch.relu(a @ (one @ other))
    std, _ = torch.std_mean(a)
    check(std + std, [t, w[2], v[2], unused, w[1], v[1]])
    t2, t3, t4, t5 = t + t, t * t, t / t, t - t
    check((t2 * t3 + t4 * t5 + t2 * t4 + t3 * t5).sum(), [t2, t])


def test_broadcast_operands() -> None:
    a, b, c, d = leaf(2, 3, 4), leaf(4, seed=1), leaf(3, 1, seed=2), leaf(seed=3)
    check((a + b * c - d).sum(), [a, b, c, d])


def test_operands_of_different_dtypes() -> None:
    a, b = leaf(3, dtype=torch.float32), leaf(seed=1)
    c = torch.complex(leaf(3), leaf(3, seed=1)).detach().requires_grad_()
    check([(a * b).sum(), (c * a).abs().sum()], [a, b, c])


def test_gradients_of_roots_are_given() -> None:
    a = leaf(2, 3)
    check([a * 2, a.sum()], [a], [torch.rand(2, 3, dtype=torch.float64), None])
    found = list(grad_generator([a * 2, a.sum()], [a], [torch.ones(2, 3, dtype=torch.float64)]))
    torch.testing.assert_close(found[0], torch.full((2, 3), 3.0, dtype=torch.float64))


def test_root_is_among_the_tensors() -> None:
    a = leaf(3)
    total = a.sum()
    check([total, total * total], [total, a])
    check(total, [total])
    one = leaf()
    check(one, [one])
    check([one, one * 2], [one])


def test_intermediate_feeds_several_users() -> None:
    a = leaf(3)
    hidden = a.exp()
    check((hidden * a + hidden.sin() * hidden).sum(), [a, hidden, a])


def test_tensor_is_given_twice() -> None:
    a = leaf(3)
    hidden = a.exp()
    check(hidden.sum(), [hidden, a, hidden, a])


def test_unused_tensors_have_no_gradient() -> None:
    a, b = leaf(3), leaf(3, seed=1)
    first, second = a.unbind(0)[:2]
    assert [one is None for one in grad_generator(first * 2, [b, a, second.exp()])] == [True, False, True]
    assert list(grad_generator((), [b])) == [None]
    assert list(grad_generator(a.sum(), [])) == []


def test_operator_with_several_results() -> None:
    a = leaf(4, 3)
    values, indices = a.max(dim=1)
    parts = a.split(2)
    check([(values * indices).sum(), (parts[0] * parts[1]).sum(), torch.cat([a.t(), a.t()]).prod()], [a, parts[1]])


def test_embedding_with_sparse_gradient() -> None:
    weight = leaf(5, 3)
    sparse = nn.functional.embedding(torch.tensor([1, 1, 4]), weight, sparse=True).sum()
    found = list(grad_generator([sparse, weight.exp().sum()], [weight]))[0]
    dense = nn.functional.embedding(torch.tensor([1, 1, 4]), weight).sum() + weight.exp().sum()
    torch.testing.assert_close(found.to_dense(), torch.autograd.grad(dense, weight)[0])


def test_writes_in_place_and_views() -> None:
    a, b = leaf(4, 3), leaf(3, seed=1)
    base = a.clone()
    row = base[1]
    row.mul_(b)
    base[2] = b * b
    base.t()[0].add_(1).sin_()
    check(base.exp().sum(), [a, b, row])


def test_arguments_are_pytrees_and_iterators() -> None:
    model = nn.Linear(3, 2)
    loss = model(torch.ones(4, 3)).square().sum()
    expected = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    for tree in (model.parameters(), dict(model.named_parameters()), dict(model.named_parameters()).values()):
        found = list(grad_generator({"loss": loss * 1}, tree))
        torch.testing.assert_close(found, list(expected))
        loss = model(torch.ones(4, 3)).square().sum()


@incremental
def test_arguments_are_edges() -> None:
    a = leaf(3)
    hidden = a.exp()
    total = hidden.sum()
    expected = torch.autograd.grad(total, [hidden, a], retain_graph=True)
    edges = [get_gradient_edge(hidden), get_gradient_edge(a)]
    torch.testing.assert_close(list(grad_generator(get_gradient_edge(total), edges)), list(expected))


# --- random graphs


@st.composite
def programs(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    return draw(st.lists(st.tuples(st.integers(0, 15), st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=14))


def executed(program: list[tuple[int, int, int]], leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors of shape (2, 2), of which some share memory and some are written to."""
    values: list[torch.Tensor] = list(leaves)
    for operation, i, j in program:
        a, b = values[i % len(values)], values[j % len(values)]
        match operation:
            case 0:
                values.append(a + b)
            case 1:
                values.append(a * b)
            case 2:
                values.append(a @ b)
            case 3:
                values.append(a.sin())
            case 4:
                values.append(a.t())
            case 5:
                values.append(a[0] + b)
            case 6:
                values.extend(torch.cat([a, b]).split(2))
            case 7:
                values.append(a.sum(0, keepdim=True) * b)
            case 8:
                values.append(a.detach() * b)
            case 9:
                values.append(Double.apply(2, a, torch.ones(2), b)[j % 2 * 2])
            case 10:
                values.append(a.clone())
            case 11:
                with contextlib.suppress(RuntimeError):  # of a leaf, or of one of several views
                    a.add_(b.detach().clone())
            case 12:
                with contextlib.suppress(RuntimeError):  # of a leaf, or of one of several views
                    a.mul_(2)
            case 13:
                with contextlib.suppress(RuntimeError):  # of a leaf, or of one of several views
                    a[0].add_(b[1].sin().clone())
            case 14:
                with contextlib.suppress(RuntimeError):  # of a leaf, or of one of several views
                    a.t().mul_(b.clone())
            case _:
                values.append(torch.where(a > b, a, b * 2))
    return values


@settings(deadline=None, max_examples=150)
@given(
    program=programs(),
    choices=st.lists(st.integers(0, 60), min_size=1, max_size=6),
    ends=st.lists(st.integers(0, 60), min_size=1, max_size=3),
)
def test_random_graphs(program: list[tuple[int, int, int]], choices: list[int], ends: list[int]) -> None:
    values = executed(program, [leaf(2, 2, seed=i) for i in range(3)])
    live = [value for value in values if value.requires_grad]
    roots = [live[-1 - i % len(live)] for i in ends]
    tensors = [live[i % len(live)] for i in choices]
    seeds = [torch.full((2, 2), 0.5 + i, dtype=torch.float64) for i in range(len(roots))]
    try:
        expected = torch.autograd.grad(roots, tensors, seeds, retain_graph=True, allow_unused=True)
    except RuntimeError as e:
        # A saved tensor that was changed afterwards.
        try:
            found = list(grad_generator(roots, tensors, seeds))
        except RuntimeError as ours:
            assert str(ours)[:40] == str(e)[:40]
        else:
            # For an unused result of an operator with several results, the engine runs the nodes above the operator.
            assert None in found
        return
    order = gradient_execution_order(roots, tensors)
    assert sorted(order) == list(range(len(tensors)))
    for one, other in zip(grad_generator(roots, tensors, seeds), expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other)


# --- models


def model() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.Linear(4, 8), layer, nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2)).double()


def test_transformer_in_reverse_order_of_parameters() -> None:
    net = model()
    loss = net(leaf(3, 5, 4).detach()).square().mean()
    check(loss, list(reversed(list(net.parameters()))))


def test_convolutions_with_batch_norm() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 2)).double()
    check(nn.functional.cross_entropy(net(leaf(2, 1, 8, 8).detach()), torch.tensor([0, 1])), list(net.parameters()))


def test_recurrent_model_with_shared_weights() -> None:
    torch.manual_seed(0)
    cell = nn.GRUCell(3, 4).double()
    state = torch.zeros(2, 4, dtype=torch.float64)
    for i in range(5):
        state = cell(leaf(2, 3, seed=i).detach(), state)
    check(state.square().sum(), list(cell.parameters()))


@pytest.mark.filterwarnings("ignore:.*torch.cpu.amp.autocast:FutureWarning")  # torch 2.4 warns of itself
def test_checkpointed_model() -> None:
    first, second = nn.Sequential(nn.Linear(3, 4), nn.Tanh()).double(), nn.Linear(4, 2).double()
    x = leaf(5, 3)

    def loss() -> Any:
        return second(checkpoint(first, x, use_reentrant=False)).square().sum()

    parameters = [*second.parameters(), *first.parameters(), x]
    expected = torch.autograd.grad(loss(), parameters)
    torch.testing.assert_close(list(grad_generator(loss(), parameters)), list(expected))


def test_training_step_with_updates_between_gradients() -> None:
    net = model()
    reference = model()
    x = leaf(3, 5, 4).detach()
    for _ in range(3):
        reference(x).square().mean().backward()
        with torch.no_grad():
            for parameter in reference.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = None
        parameters = list(reversed(list(net.parameters())))
        gradients = []
        for gradient in grad_generator(net(x).square().mean(), parameters):
            assert torch.is_grad_enabled()
            gradients.append(gradient)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter -= 0.1 * gradient
    torch.testing.assert_close(list(net.parameters()), list(reference.parameters()))


# --- hooks and functions


def hooked(log: list[str]) -> tuple[Any, list[Any]]:
    """A graph with hooks of every kind. The middle tensor is no root and not asked for."""
    a, b = leaf(3), leaf(3, seed=1)
    middle = a * b
    last = middle.sin() + middle
    total = (last * a).sum()

    def scaled(name: str, factor: float) -> Callable[[Any], Any]:
        def hook(gradient: Any) -> Any:
            log.append(name)
            return gradient * factor

        return hook

    for name, tensor, factor in (("a", a, 2), ("middle", middle, 3), ("last", last, 5), ("total", total, 7)):
        tensor.register_hook(scaled(name, factor))
    middle.retain_grad()
    last.grad_fn.register_prehook(lambda gradients: (gradients[0] + 1,))
    middle.grad_fn.register_hook(lambda results, gradients: (results[0] * 2 + gradients[0], *results[1:]))
    return total, [last, a, b, middle]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_hooks_run_once() -> None:
    logs: tuple[list[str], list[str]] = ([], [])
    total, tensors = hooked(logs[0])
    other, others = hooked(logs[1])
    last, *expected = torch.autograd.grad(total, tensors)
    found = list(grad_generator(other, others))
    # Torch's result for a tensor depends on its version: here it is the gradient before the hooks of the tensor.
    torch.testing.assert_close(found, [last * 5, *expected[:2], expected[2] * 3] if VERSION >= (2, 5) else [last, *expected])
    assert sorted(logs[0]) == sorted(logs[1]) == ["a", "last", "middle", "total"]
    torch.testing.assert_close(others[3].grad, tensors[3].grad)


@incremental
def test_hooks_of_tensors_that_are_gone_run() -> None:
    log: list[str] = []
    total, tensors = hooked(log)
    other, others = hooked([])
    a, theirs = tensors[1], others[1]
    del tensors, others
    torch.testing.assert_close(next(grad_generator(total, a)), torch.autograd.grad(other, theirs)[0])
    assert log == ["total", "last", "middle", "a"]


def test_hooks_of_modules() -> None:
    found: list[Any] = []
    for gradients in (torch.autograd.grad, grad_generator):
        net = model()
        net[1].register_full_backward_hook(lambda module, below, above: (below[0] * 2,))
        net[0].register_full_backward_pre_hook(lambda module, above: (above[0] + 1,))
        found.append(list(gradients(net(leaf(3, 5, 4)).square().mean(), list(net.parameters()))))
    torch.testing.assert_close(found[0], found[1])


def test_custom_function_with_missing_gradients() -> None:
    a, b = leaf(3), leaf(3, seed=1)
    for choose in (
        lambda product, total: (product.sum(), [a, b]),
        lambda product, total: ((total * a).sum(), [b, a]),
        lambda product, total: ([product.sum(), total.sum()], [a, b, product]),
    ):
        product, positions, total = Double.apply(3, a, torch.ones(3), b)
        assert positions.dtype == torch.int64
        check(*choose(product, total))
    check(Double.apply(3, a, b.detach(), torch.ones(3))[0].sum(), [a])


@incremental
def test_custom_function_with_wrong_number_of_gradients() -> None:
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: Any, b: Any) -> Any:
            return a + b

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return gradient

    a = leaf(3)
    with pytest.raises(RuntimeError, match=r"incorrect number of gradients \(expected 2, got 1\)"):
        list(grad_generator(Wrong.apply(a, a).sum(), a))
