"""Every operator that torch describes for its own tests: on a mesh of two ranks as on this process."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import operators
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from monarch import tensor as mt
from monarch.actor import ProcMesh, this_host

# The first test imports torch's descriptions.
pytestmark = pytest.mark.timeout(120)

BATCHES = 20

_MEMORY = "torch reads the positions from the memory of a tensor, below its operators, so that no tensor without data gets there"
_STRICTER = "torch's implementation without data refuses what the one with data allows"
_NOT_WRITTEN = "torch does not write to `out` where a tensor is of a subclass"
_LAZY = "torch's implementation without data does not conjugate the result lazily, and the one with data does"
_NO_VALUES = "its result has no values yet"
_STRIDES = "torch's implementations with and without data give other strides"

# Operators that are left out. All others, their variants and their gradients are compared: form, shapes, types, strides and values on each
# rank. A sample for which the operator fails on this process is skipped, and so is an operator that this device lacks. If the mesh refuses
# one with `TensorMeshError`, the error names an operator in it, and torch's own tensors without data fail too.
LEFT_OUT = {
    "addbmm in place": _STRICTER,
    "linalg.lu_solve with out=": _LAZY,
    "linalg.matrix_rank with out=": _NOT_WRITTEN,
    "linalg.matrix_rank.hermitian with out=": _NOT_WRITTEN,
    "tensor_split": _MEMORY,
    "tensor_split backward": _MEMORY,
}
VALUES_LEFT_OUT = {
    "empty": _NO_VALUES,
    "empty_like": _NO_VALUES,
    "empty_permuted": _NO_VALUES,
    "empty_strided": _NO_VALUES,
    "new_empty": _NO_VALUES,
    "new_empty_strided": _NO_VALUES,
}
STRIDES_LEFT_OUT = {"ormqr backward": _STRIDES}
if torch.__version__.startswith("2.8."):
    LEFT_OUT |= {"nanmean with out=": "torch 2.8 reads the memory of `out`", "unbind_copy with out=": "torch 2.8 wants no result of it"}
    for _name in ("fft.fft", "fft.rfft", "fft.ifft", "fft.ihfft", "linalg.eig"):
        STRIDES_LEFT_OUT |= {_name: _STRIDES, f"{_name} with out=": _STRIDES}
    STRIDES_LEFT_OUT |= {"fft.hfft backward": _STRIDES, "fft.irfft backward": _STRIDES}

# Some of the operators that need data.
NEED_DATA = {"allclose", "equal", "masked_select", "nonzero", "unique", "bincount"}


@pytest.fixture(scope="module")
def procs() -> Iterator[ProcMesh]:
    made = this_host().spawn_procs({"gpus": 2})
    yield made
    made.stop().get()


@pytest.fixture(scope="module")
def mesh(procs: ProcMesh) -> Any:
    with procs.activate() as active:
        return active


def compare_all(
    mesh: Any, batch: int, calls: Callable[[Any], list[tuple[str, operators.Call]]], dtype: Any = None, requires_grad: bool = False
) -> None:
    """Compares the operators of a batch; their own type of samples without `dtype`."""
    problems: list[str] = []
    refused: set[str] = set()
    infos = operators.op_infos()[batch::BATCHES]
    with operators.quiet():
        for info in infos:
            name = operators.full_name(info)
            for i, sample in enumerate(operators.samples(info, dtype or operators.type_of(info), requires_grad)):
                for what, call in calls(info):
                    case = name + what
                    if case in LEFT_OUT:
                        continue
                    try:
                        if not operators.compare(mesh, call, sample, name not in VALUES_LEFT_OUT, case not in STRIDES_LEFT_OUT):
                            refused.add(case)
                    except Exception as e:
                        problems.append(f"{case}, sample {i}: {type(e).__name__}: {e}")
    assert not problems, "\n".join(problems)
    if not requires_grad and dtype is None:
        assert refused >= NEED_DATA & {operators.full_name(i) for i in infos}
    # Each entry of the workers' tables has a tensor that refers to it.
    gc.collect()
    mesh.check()
    assert set(mesh.controller.workers.size_of_table.call().get().values()) == {0}


@pytest.mark.parametrize("batch", range(BATCHES))
def test_results(mesh: Any, batch: int) -> None:
    compare_all(mesh, batch, operators.plain_calls)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_results_for_complex_numbers(mesh: Any, batch: int) -> None:
    compare_all(mesh, batch, operators.plain_calls, torch.complex64)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_gradients(mesh: Any, batch: int) -> None:
    compare_all(mesh, batch, operators.gradient_calls, requires_grad=True)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_gradients_for_complex_numbers(mesh: Any, batch: int) -> None:
    compare_all(mesh, batch, operators.gradient_calls, torch.complex64, requires_grad=True)


# Operators without a sample


@mt.remote(propagate=torch.empty_like)
def conjugate(t: Any) -> Any:
    return t.conj()


@mt.remote
def increase(t: Any) -> None:
    t.add_(1)


def test_data_of_a_tensor_is_set(mesh: Any) -> None:
    with mesh.activate():
        x, y = torch.nn.Parameter(torch.ones(2)), torch.arange(3.0)
        x.data = y
        x.data.mul_(2)
        assert x.requires_grad
        assert x.shape == (3,)
        assert [t.tolist() for t in mt.inspect([x.detach(), y])] == [[0, 2, 4]] * 2
        y.drop()
        assert x.dropped


def test_module_changes_its_type(mesh: Any) -> None:
    with mesh.activate():
        module = torch.nn.Linear(2, 2).double()
        module(torch.ones(2, dtype=torch.double)).sum().backward()
        found = mt.inspect(module.weight.grad)
        assert (found.dtype, found.tolist()) == (torch.double, [[1, 1], [1, 1]])


def test_local_data_cannot_become_mesh_data(mesh: Any) -> None:
    local = torch.ones(2)
    with mesh.activate():
        x = torch.zeros(3)
        with pytest.raises(TypeError):
            x.data = local
        assert mt.inspect(x).tolist() == [0, 0, 0]


def test_set_shares_the_memory_of_another_tensor(mesh: Any) -> None:
    with mesh.activate():
        x, y = torch.ones(4), torch.arange(3.0)
        x.set_(y)
        x.add_(1)
        assert mt.inspect(y).tolist() == [1, 2, 3]
        y.drop()
        assert x.dropped
        z = torch.ones(4)
        z.set_()
        assert mt.inspect(z).numel() == 0


def test_resize_makes_more_memory(mesh: Any) -> None:
    with mesh.activate():
        x = torch.arange(3.0)
        view = x[1:]
        x.resize_(2, 3)
        view.fill_(7)
        assert mt.inspect(x[0]).tolist() == [0, 7, 7]


def test_view_reaches_the_memory_behind_it(mesh: Any) -> None:
    with mesh.activate():
        x = torch.arange(6.0)
        view = x[:1]
        view.as_strided_((2,), (3,), 1)
        view.add_(1)
        assert mt.inspect(x).tolist() == [0, 2, 2, 3, 5, 5]


def test_views_in_lists_share_the_tensors_memory(mesh: Any) -> None:
    with mesh.activate():
        x = torch.arange(4.0)
        views = [*x.split(2), *x.unbind(), *x.chunk(2)]
        x.drop()
        assert all(v.dropped for v in views)


def test_tensor_with_any_stride_is_moved(mesh: Any) -> None:
    with mesh.activate():
        x = torch.full((1,), 3, dtype=torch.int16).as_strided((1, 1), (0, 0))
        assert mt.inspect(x.reduce("gpus", "stack")).tolist() == [[[3]], [[3]]]
        assert mt.inspect(x.slice_mesh(gpus=0).to_mesh(mesh), gpus=1).tolist() == [[3]]


def test_layout_of_a_borrowed_tensor_stays_the_owners(mesh: Any) -> None:
    with mesh.activate():
        x = torch.arange(6.0).view(2, 3)
        lent, borrow = mt.Stream("other").borrow(x, mutable=True)
        with lent.stream.activate(), borrow:
            lent.t_().add_(1)
        assert mt.inspect(x).tolist() == [[1, 2, 3], [4, 5, 6]]


def test_lazily_conjugated_tensor_is_moved(mesh: Any) -> None:
    with mesh.activate():
        x = (torch.arange(3) + 1j).conj()
        expected = [0 - 1j, 1 - 1j, 2 - 1j]
        assert x.is_conj()
        assert mt.inspect(x).tolist() == expected
        assert mt.inspect(x.imag).tolist() == [-1] * 3
        assert mt.inspect(x.reduce("gpus", "stack")).tolist() == [expected] * 2
        assert mt.inspect(x.slice_mesh(gpus=0).to_mesh(mesh), gpus=1).tolist() == expected
        made = conjugate(x.conj())
        assert mt.inspect(torch.view_as_real(made)).tolist() == [[0, -1], [1, -1], [2, -1]]


def test_retyped_view_of_a_known_number_is_unknown(mesh: Any) -> None:
    with mesh.activate():
        x = torch.tensor(1 + 2j)
        y = x.conj()
        assert x.item() == 1 + 2j
        for unknown in (y, x.real, torch.tensor(1.0).view(torch.int32)):
            with pytest.raises(mt.TensorMeshError, match="item"):
                unknown.item()


def test_number_is_unknown_after_foreign_writes(mesh: Any) -> None:
    with mesh.activate():
        x, y = torch.tensor(1.0), torch.tensor(1.0)
        increase.broadcast(x)
        lent, borrow = mt.Stream("other").borrow(y, mutable=True)
        with lent.stream.activate(), borrow:
            lent.add_(1)
        for unknown in (x, y):
            with pytest.raises(mt.TensorMeshError, match="item"):
                unknown.item()
            assert mt.inspect(unknown) == 2


def test_other_subclasses_work_where_no_mesh_is_active(mesh: Any) -> None:
    with mesh.activate(), mt.no_mesh.activate(), FakeTensorMode():
        x = torch.ones(2, 3)
        assert (x.t() @ x).shape == (3, 3)


def test_names_that_are_no_operators_are_refused() -> None:
    from monarch.tensor._worker.executor import operator_of

    assert operator_of("aten.add.Tensor") is torch.ops.aten.add.Tensor
    for name in (
        "os.system",
        "os.system.default",
        "aten.add",
        "aten.add.nothing",
        "aten.__class__.__init__",
        "torch_nn.nothing.default",
        "",
        "a.b.c.d",
    ):
        with pytest.raises(LookupError):
            operator_of(name)
