"""Replays of recorded calls do what the calls would do: their checks, their versions for autograd, their views, what they leave behind."""

import math

import pytest
import torch

from monarch.tensor import Stream, TensorMeshError, compile, inspect

pytestmark = pytest.mark.timeout(180)


def replayed(function, *arguments):
    """The function, recorded and verified with arguments that `arguments` make."""
    made = compile(function)
    for _ in range(3):
        made(*(argument() for argument in arguments))
    return made


def ones():
    return torch.ones(2)


def dropped():
    t = ones()
    t.drop()
    return t


def ended():
    lent, borrow = Stream("beside").borrow(ones())
    borrow.drop()
    return lent


@pytest.mark.parametrize("function", [lambda x: x + 1, lambda x: x.add_(1)])
def test_arguments_are_checked(mesh, function):
    step = replayed(function, ones)
    with pytest.raises(TypeError, match="DROPPED"):
        step(dropped())
    t = ones()
    _, borrow = Stream("beside").borrow(t, mutable=True)
    with borrow, pytest.raises(TypeError, match="BORROWED"):
        step(t)
    assert inspect(step(t)).tolist() == [2.0, 2.0]


def test_shared_borrow_is_read_and_not_written(mesh):
    read, write = replayed(lambda x: x + 1, ones), replayed(lambda x: x.add_(1), ones)
    t = ones()
    _, borrow = Stream("beside").borrow(t)
    with borrow:
        assert inspect(read(t)).tolist() == [2.0, 2.0]
        with pytest.raises(TypeError, match="MUTATING_BORROW"):
            write(t)
    assert inspect(t).tolist() == [1.0, 1.0]


def test_captured_tensors_are_checked(mesh):
    captured = ones()
    step = replayed(lambda x: x + captured, ones)
    _, borrow = Stream("beside").borrow(captured, mutable=True)
    with borrow, pytest.raises(TypeError, match="BORROWED"):
        step(ones())
    assert inspect(step(ones())).tolist() == [2.0, 2.0]
    captured.drop()
    with pytest.raises(TypeError, match="DROPPED"):
        step(ones())


@pytest.mark.parametrize("place", ["argument", "captured"])
def test_autograd_notices_what_a_replay_writes(mesh, place):
    captured = ones()
    x = ones() if place == "argument" else captured
    function = (lambda x: x.mul_(5)) if place == "argument" else (lambda x: captured.mul_(5))
    step = replayed(function, ones)
    w = torch.ones(2, requires_grad=True)
    loss = (w * x).sum()
    step(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_views_that_a_replay_returns_are_views(mesh):
    tail = replayed(lambda x: x[1:], ones)
    x = ones()
    view = tail(x)
    x.add_(1)
    assert inspect(view).tolist() == [2.0]
    _, borrow = Stream("beside").borrow(x, mutable=True)
    with borrow, pytest.raises(TypeError, match="BORROWED"):
        view + 1
    x.drop()
    with pytest.raises(TypeError, match="DROPPED"):
        view + 1

    pair = replayed(lambda x: (y := x + 1, y[1:]), ones)
    whole, part = pair(ones())
    part.drop()
    assert whole.dropped


def test_gradients_that_the_program_keeps_are_not_written(mesh):
    w = torch.ones(2, requires_grad=True)

    @compile
    def step(x):
        w.grad = None
        (w * x).sum().backward()

    kept = []
    for i in range(5):
        step(torch.full((2,), float(i)))
        kept.append(w.grad)
    assert [inspect(g).tolist() for g in kept] == [[float(i)] * 2 for i in range(5)]
    kept.clear()

    found = []
    for i in range(5):
        step(torch.full((2,), float(i)))
        w.grad = w.grad * 0.5
        found.append(inspect(w.grad).tolist())
    assert found == [[i * 0.5] * 2 for i in range(5)]


def test_call_after_a_difference_is_compared_anew(mesh):
    def losses(make):
        w = torch.ones(2, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=0.1, momentum=0.9)

        def step(x):
            optimizer.zero_grad()
            loss = (w * x).pow(2).sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        step, found = make(step), []
        for _ in range(6):
            try:
                found.append(inspect(step(ones())).item())
            except TensorMeshError as e:
                # The optimiser has made its state in its first step.
                assert "second call differs" in str(e)
                found.append(None)
        return found

    eager, compiled = losses(lambda step: step), losses(compile)
    assert compiled == [eager[0], None, *eager[2:]]


def test_zeros_of_both_signs_are_two_signatures(mesh):
    step = compile(lambda x, by: x / by)
    found = [inspect(step(torch.ones(1), by)).item() for by in (0.0, -0.0, 0.0, -0.0, 0.0, -0.0)]
    assert found == [math.inf, -math.inf] * 3
    calls = []
    step = compile(lambda x, by: (calls.append(by), x * by)[1])
    for _ in range(4):
        step(torch.ones(1), math.nan)
    assert len(calls) == 2


def test_modes_of_torch_are_in_the_signature(mesh):
    step = compile(lambda x: x @ x)
    for _ in range(3):
        assert step(torch.ones(2, 2)).dtype == torch.float32
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert step(torch.ones(2, 2)).dtype == torch.bfloat16


def test_second_call_returns_what_the_first_did(mesh):
    calls = 0

    def swapped(t):
        a, b = t + 1, t + 2
        return (a, b) if calls == 1 else (b, a)

    def another_kind(t):
        a = t + 1
        return (a, 1) if calls == 1 else {"only": a}

    def another_value(t):
        return t + 1, calls

    for function in (swapped, another_kind, another_value):
        calls, compiled = 1, compile(function)
        compiled(torch.ones(1))
        calls = 2
        with pytest.raises(TensorMeshError, match=f"{function.__name__}.*: its second call returned something else than the recorded one"):
            compiled(torch.ones(1))


def test_reduction_to_a_part_can_be_recorded(mesh):
    part = mesh.slice(gpus=0)
    reduced = compile(lambda t: t.reduce("gpus", "sum", mesh=part), verify=False)
    for n in range(4):
        found = reduced(torch.ones(2) * n)
        with part.activate():
            assert inspect(found + 1).tolist() == [2.0 * n + 1] * 2
        mesh.check()
