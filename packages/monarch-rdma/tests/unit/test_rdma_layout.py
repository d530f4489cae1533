"""Tensors of any shape, against numpy: a stand-in for torch shows numpy's memory as torch would."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch.rdma import RDMABuffer, RDMABufferSet, RDMAUnsupportedError
from monarch.rdma._transfer.memory import layout

numpy = pytest.importorskip("numpy")


class Device:
    def __init__(self, kind):
        self.type = kind

    def __str__(self):
        return f"{self.type}:0"


class Tensor:
    """What is needed of `torch.Tensor`, over an array."""

    layout = "torch.strided"

    def __init__(self, array, device="cpu"):
        self.array = array
        self.shape = array.shape
        self.dtype = f"torch.{array.dtype}"
        self.device = Device(device)

    def data_ptr(self):
        return self.array.__array_interface__["data"][0]

    def numel(self):
        return self.array.size

    def element_size(self):
        return self.array.itemsize

    def dim(self):
        return self.array.ndim

    def stride(self):
        return tuple(s // self.array.itemsize for s in self.array.strides)

    def is_contiguous(self):
        return self.array.flags.c_contiguous

    def is_conj(self):
        return False

    is_neg = is_conj


@pytest.fixture(autouse=True, scope="module")
def torch():
    if "torch" in sys.modules:
        pytest.skip("the real one is loaded")
    module = ModuleType("torch")
    module.Tensor = Tensor
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch", module)
        yield module


@st.composite
def arrays(draw):
    """Views of arrays: cut, turned, with steps."""
    shape = draw(st.lists(st.integers(1, 5), min_size=0, max_size=4))
    array = numpy.arange(numpy.prod(shape, dtype=int), dtype=draw(st.sampled_from(["int8", "int32", "float64"]))).reshape(shape)
    if shape:
        array = array.transpose(draw(st.permutations(range(len(shape)))))
        cuts = [draw(st.tuples(st.integers(0, n - 1), st.integers(1, 3))) for n in array.shape]
        array = array[tuple(slice(start, None, step) for start, step in cuts)]
    return array


@given(arrays())
@settings(deadline=None)
def test_runs_are_the_items_in_their_order(array):
    import ctypes

    made = layout(Tensor(array))
    assert made.shape == array.shape and made.nbytes == array.nbytes
    seen = b"".join(ctypes.string_at(run.address, run.nbytes) for run in made.runs)
    assert seen == array.tobytes()


@given(arrays(), st.data())
@settings(deadline=None)
def test_sets_copy_between_any_layouts(array, data):
    # The same shape, with its memory in another order.
    order = data.draw(st.permutations(range(array.ndim)))
    local = numpy.zeros([array.shape[i] for i in order], array.dtype).transpose(numpy.argsort(order))
    assert local.shape == array.shape
    buffers = RDMABufferSet({"x": Tensor(array)})
    buffers.read_into({"x": Tensor(local)}).get()
    assert numpy.array_equal(local, array)
    local += 1
    buffers.write_from({"x": Tensor(local)}).get()
    assert numpy.array_equal(local, array)
    buffers.drop().get()


def test_noncontiguous_memory_is_refused():
    whole = numpy.zeros((4, 6))
    with pytest.raises(ValueError, match=r"1-D contiguous tensor, got one of shape \(4, 6\)"):
        RDMABuffer(Tensor(whole))
    with pytest.raises(ValueError, match="strides"):
        RDMABuffer(Tensor(numpy.zeros(6)[::2]))
    with pytest.raises(ValueError, match="'x': the tensor has zero bytes"):
        RDMABufferSet({"x": Tensor(numpy.zeros((0, 3)))})
    with pytest.raises(ValueError, match="'x': the tensor lies in 2,000 pieces"):
        RDMABufferSet({"x": Tensor(numpy.zeros((2000, 2))[:, :1])})
    with pytest.raises(RDMAUnsupportedError, match="cuda-ipc"):
        RDMABuffer(Tensor(numpy.zeros(6), "cuda"))
    buffers = RDMABufferSet({"x": Tensor(whole)})
    with pytest.raises(ValueError, match="'x' is float64 of shape"):
        buffers.read_into({"x": Tensor(numpy.zeros((6, 4)))})


def test_one_dimensional_tensor_is_copied():
    source, got = numpy.arange(10.0), numpy.zeros(12)
    with RDMABuffer(Tensor(source)) as buffer:
        buffer.read_into(Tensor(got)).get()
    assert numpy.array_equal(got[:10], source) and not got[10:].any()
