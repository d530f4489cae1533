"""Numbers that the controller knows: they are right, or unknown, whatever writes to them."""

import pytest
import torch

from monarch.actor import Actor, endpoint
from monarch.tensor import TensorMeshError, compile, inspect

pytestmark = pytest.mark.timeout(180)


class Writer(Actor):
    def __init__(self):
        self.kept = None

    @endpoint
    def add(self, t):
        t.add_(1)

    @endpoint
    def keep(self, t):
        self.kept = t

    @endpoint
    def add_to_the_kept(self):
        self.kept.add_(1)


def known(number):
    """It, or None where the controller does not know it."""
    try:
        return number.item()
    except TensorMeshError:
        return None


@pytest.mark.parametrize(
    "write",
    [
        lambda s: torch.add(s, 1, out=s),
        lambda s: torch.mul(s, 2, out=s),
        lambda s: torch._foreach_add_([s, s], 1),
        lambda s: torch._foreach_add_([s, s.detach()], 1),
        lambda s: s.detach().set_(torch.tensor(7.0)),
        lambda s: s.set_(torch.tensor(7.0)),
        lambda s: (s.set_(t := torch.tensor(7.0)), t.add_(1)),
        lambda s: s.view(()).add_(1),
        lambda s: s.detach().mul_(3),
    ],
)
def test_known_number_equals_the_workers_value(mesh, write):
    s = torch.tensor(3.0)
    write(s)
    assert known(s) == inspect(s).item()


def test_known_number_is_shown(mesh):
    s = torch.tensor(3.25)
    assert (f"{s:.1f}", f"{s.detach():5.2f}", s.tolist()) == ("3.2", " 3.25", 3.25)
    for unknown in (torch.ones(2).sum(), torch.ones(1)):
        for show in (lambda t: f"{t:.1f}", lambda t: t.tolist()):
            with pytest.raises(TensorMeshError, match="needs the data of a mesh tensor"):
                show(unknown)


@pytest.mark.parametrize("adverb", ["call", "broadcast", "stream"])
def test_actor_may_write_to_a_known_number(mesh, procs, adverb):
    writer = procs.spawn("writer", Writer)
    s = torch.tensor(3.0)
    answer = getattr(writer.add, adverb)(s)
    if adverb == "call":
        answer.get()
    elif adverb == "stream":
        [one.get() for one in answer]
    assert known(s) is None
    t = torch.tensor(3.0)
    writer.keep.call(t.detach()).get()
    writer.add_to_the_kept.call().get()
    assert known(t) is None and inspect(t).item() == 4.0
    writer.stop().get()


def test_number_operands_share_one_definition(mesh):
    x = torch.zeros(2)
    x + 0.5
    cache = mesh.controller.cache
    before = len(cache)
    total = x
    for i in range(20):
        total = total + i * 0.25
    assert len(cache) <= before + 1
    assert inspect(total).tolist() == [0.25 * 190] * 2
    # The kind of the number decides the type of the result.
    assert (torch.ones(2, dtype=torch.int64) + 1).dtype == torch.int64
    assert (torch.ones(2, dtype=torch.int64) + 1.0).dtype == torch.float32


def test_recording_is_replayed_while_its_numbers_are_equal(mesh):
    scale = torch.tensor(2.0)

    @compile
    def scaled(a, s):
        return a * s.item() * scale.item()

    found = [inspect(scaled(torch.ones(1), torch.tensor(float(v)))).item() for v in (2, 2, 2, 3, 3, 3, 4)]
    assert found == [4.0, 4.0, 4.0, 6.0, 6.0, 6.0, 8.0]
    scale.fill_(5.0)
    assert inspect(scaled(torch.ones(1), torch.tensor(4.0))).item() == 20.0

    @compile
    def chosen(a, s):
        return a * 2 if (s + 1).item() > 3 else a * 3

    assert [inspect(chosen(torch.ones(1), torch.tensor(float(v)))).item() for v in (1, 1, 1, 5, 5, 1)] == [3.0, 3.0, 3.0, 2.0, 2.0, 3.0]
