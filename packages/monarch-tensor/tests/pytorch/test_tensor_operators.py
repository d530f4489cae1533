"""Every operator that torch describes for its own tests: on a mesh of two ranks as on this process."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import operators
import pytest

from monarch.actor import ProcMesh, this_host

# With `-W error` the whole file imports torch's descriptions in the first test.
pytestmark = pytest.mark.timeout(120)

BATCHES = 20

# Operators of which nothing is compared.
_ANOTHER_DEVICE = "it is for another device only"
_LEFT_OUT = {
}
# Operators of which the values are not compared.
_NO_VALUES = dict.fromkeys(
    ["empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"], "its result has no values yet"
)


@pytest.fixture(scope="module")
def procs() -> Iterator[ProcMesh]:
    made = this_host().spawn_procs({"gpus": 2})
    yield made
    made.stop().get()


@pytest.fixture(scope="module")
def mesh(procs: ProcMesh) -> Any:
    with procs.activate() as active:
        return active


def problems_of(mesh: Any, batch: int, calls: Callable[[Any], list[tuple[str, operators.Call]]], requires_grad: bool) -> list[str]:
    """What differs for the operators of a batch."""
    found: list[str] = []
    for info in operators.op_infos()[batch::BATCHES]:
        name = operators.full_name(info)
        if name in _LEFT_OUT:
            continue
        for i, sample in enumerate(operators.samples(info, requires_grad)):
            for what, call in calls(info):
                try:
                    operators.compare(mesh, call, sample, name not in _NO_VALUES)
                except Exception as e:
                    found.append(f"{name}{what}, sample {i}: {type(e).__name__}: {e}")
    return found


def check_empty(mesh: Any) -> None:
    """The tables of the workers have no entry that no tensor refers to."""
    gc.collect()
    mesh.check()
    assert set(mesh.controller.workers.size_of_table.call().get().values()) == {0}


@pytest.mark.parametrize("batch", range(BATCHES))
def test_results(mesh: Any, batch: int) -> None:
    with operators.quiet():
        assert not problems_of(mesh, batch, operators.plain_calls, requires_grad=False)
    check_empty(mesh)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_gradients(mesh: Any, batch: int) -> None:
    def calls(info: Any) -> list[tuple[str, operators.Call]]:
        return [(" backward", operators.gradients(info))]

    with operators.quiet():
        assert not problems_of(mesh, batch, calls, requires_grad=True)
    check_empty(mesh)
