"""Streams and borrows."""

import gc
import time

import pytest
import torch

from monarch.tensor import Stream, get_active_stream, inspect, remote

pytestmark = pytest.mark.timeout(180)


@remote(propagate=lambda x: x)
def later(x):
    import time

    time.sleep(0.2)  # sleeps: the other stream gets ahead, if it can
    return x + 1


def test_stream_has_its_own_tensors(mesh):
    stream = Stream("beside")
    assert get_active_stream().name == "main"
    with stream.activate():
        assert get_active_stream() is stream
        t = torch.ones(2)
        assert t.stream is stream
        assert inspect(t).tolist() == [1.0, 1.0]
    with pytest.raises(TypeError, match="WRONG_STREAM: this tensor is of stream beside, and the operation is of stream main"):
        t + 1
    assert repr(stream) == "<Stream beside>"


def test_borrower_and_owner_wait_for_each_other(mesh):
    stream = Stream("beside")
    owned = later(torch.zeros(2))
    lent, borrow = stream.borrow(owned, mutable=True)
    with pytest.raises(TypeError, match="BORROWED: another stream has borrowed"):
        owned + 1
    with stream.activate():
        lent.add_(later(torch.zeros(2)))
        lent.mul_(10)
    borrow.drop()
    assert inspect(owned).tolist() == [20.0, 20.0]
    with stream.activate(), pytest.raises(TypeError, match="DROPPED"):
        lent + 1


def test_shared_borrow_is_read_and_never_written(mesh):
    stream = Stream("beside")
    owned = torch.ones(2)
    first, one = stream.borrow(owned)
    second, two = Stream("third").borrow(owned)
    assert inspect(owned + 1).tolist() == [2.0, 2.0]
    with pytest.raises(TypeError, match="MUTATING_BORROW"):
        owned.add_(1)
    with stream.activate():
        assert inspect(first * 3).tolist() == [3.0, 3.0]
        for write in (lambda: first.add_(1), lambda: first[0].zero_()):
            with pytest.raises(TypeError, match="MUTATING_BORROW"):
                write()
    with pytest.raises(TypeError, match="MUTATING_BORROW"):
        stream.borrow(owned, mutable=True)
    one.drop()
    one.drop()
    with pytest.raises(TypeError, match="MUTATING_BORROW"):
        owned.add_(1)
    two.drop()
    owned.add_(1)
    assert inspect(owned).tolist() == [2.0, 2.0]
    del second


def test_borrow_of_a_shared_borrow_is_shared(mesh):
    first, second = Stream("first"), Stream("second")
    owned = torch.ones(2)
    one, outer = first.borrow(owned)
    two, inner = second.borrow(one)
    with second.activate():
        assert inspect(two + 1).tolist() == [2.0, 2.0]
    inner.drop()
    with first.activate(), pytest.raises(TypeError, match="MUTATING_BORROW"):
        one.add_(1)
    outer.drop()
    owned.add_(1)
    assert inspect(owned).tolist() == [2.0, 2.0]


def test_borrow_is_a_context(mesh):
    stream = Stream("beside")
    owned = torch.ones(2)
    lent, borrow = stream.borrow(owned)
    with borrow, stream.activate():
        doubled = lent * 2
    with stream.activate():
        assert inspect(doubled).tolist() == [2.0, 2.0]
    owned.add_(1)


def test_forgotten_borrow_ends_when_it_is_collected(mesh):
    stream = Stream("beside")
    owned = torch.ones(2)
    lent, borrow = stream.borrow(owned, mutable=True)
    del lent, borrow
    gc.collect()
    owned.add_(1)
    assert inspect(owned).tolist() == [2.0, 2.0]


def test_streams_run_beside_each_other(mesh):
    """Each of two streams waits for the other one to have begun."""

    @remote(propagate=lambda x, mine, other: x)
    def meet(x, mine, other):
        import builtins
        import threading

        events = builtins.__dict__.setdefault("_meeting", {name: threading.Event() for name in ("a", "b")})
        events[mine].set()
        assert events[other].wait(60), "the other stream has not begun"
        return x

    stream = Stream("beside")
    one = meet(torch.zeros(1), "a", "b")
    with stream.activate():
        two = meet(torch.zeros(1), "b", "a")
        assert inspect(two).tolist() == [0.0]
    assert inspect(one).tolist() == [0.0]


def test_copy_moves_to_another_stream(mesh):
    stream = Stream("beside")
    moved = later(torch.ones(2)).to_mesh(mesh, stream)
    with stream.activate():
        assert inspect(moved + 1).tolist() == [3.0, 3.0]


@remote(propagate="cached")
def stream_threads():
    import threading

    return torch.tensor(sum(t.name.startswith("monarch-tensor-stream-") for t in threading.enumerate()))


def test_unreferenced_streams_end_on_the_workers(mesh):
    """Their threads, their process groups, and what the controller knows of them."""
    kept = Stream("kept")
    with kept.activate():
        stays = torch.ones(3)
    mesh.check()
    before = inspect(stream_threads()).item()
    for i in range(20):
        stream = Stream(f"short {i}")
        with stream.activate():
            total = (torch.ones(2) + i).reduce(reduction="sum")
        if i % 2:
            borrowed, borrow = stream.borrow(torch.full((2,), float(i)))
            with stream.activate(), borrow:
                total = total + borrowed
            del borrowed, borrow
        assert inspect(total)[0] >= i
    del stream, total
    gc.collect()
    controller = mesh.controller
    end = time.monotonic() + 60
    while inspect(stream_threads()).item() != before:  # polls: the last streams end beside the main one
        assert time.monotonic() < end, (inspect(stream_threads()).item(), before)
        mesh.check()
    assert {place.stream.name for place in controller.living_places()} == {"main", "kept"}
    assert not controller.dropped_streams and not controller.orphans
    assert inspect(stays).tolist() == [1.0, 1.0, 1.0]


def test_streams_of_one_name_are_two(mesh):
    first, second = Stream("same"), Stream("same")
    with first.activate():
        t = torch.ones(2)
    with (
        second.activate(),
        pytest.raises(TypeError, match="is of stream same, and the operation is of stream same, another one of this name"),
    ):
        t + 1
