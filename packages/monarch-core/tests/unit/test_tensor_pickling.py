"""Tensors in messages, with a stand-in for torch, which the tests do not need."""

from __future__ import annotations

import array
import contextlib
import sys
import types

import pytest

from monarch._core.pickle import pickling


def call(*args, **kwargs):
    return (args, kwargs)


class FakeTensorModule(types.ModuleType):
    """The part of torch that the choice of a pickling needs; the real one is not a dependency of the tests."""


class FakeTensor:
    layout = "strided"
    is_quantized = False

    def __init__(self, memory, device="cuda"):
        self.__class__.memory = memory
        self.__class__.device = types.SimpleNamespace(type=device)

    dtype = "uint8"
    requires_grad = True

    @property
    def shape(self):
        return (len(self.memory),)

    def numel(self):
        return len(self.memory)

    def element_size(self):
        return 1

    def data_ptr(self):
        return self.memory.buffer_info()[0]

    def detach(self):
        return self

    resolve_conj = resolve_neg = contiguous = detach

    def cpu(self):
        self.__class__.device = types.SimpleNamespace(type="cpu")
        return self


@pytest.fixture
def torch(monkeypatch):
    module, dispatch = FakeTensorModule("torch"), types.ModuleType("torch.utils._python_dispatch")
    module.Tensor, module.strided = FakeTensor, "strided"
    module.modes = []

    @contextlib.contextmanager
    def off():
        module.modes.append("off")
        yield
        module.modes.append("on")

    dispatch._disable_current_modes = off

    class Rebuilt:
        def __init__(self, memory, dtype):
            self.memory, self.dtype, self.grad = bytes(memory), dtype, False

        def reshape(self, shape):
            self.shape = shape
            return self

        def requires_grad_(self):
            self.grad = True
            return self

    module.frombuffer = lambda memory, dtype: Rebuilt(memory, dtype)
    monkeypatch.setitem(sys.modules, "torch", module)
    monkeypatch.setitem(sys.modules, "torch.utils._python_dispatch", dispatch)
    return module


def test_tensors_come_as_memory_of_the_cpu(torch):
    tensor = FakeTensor(array.array("B", bytes(range(250)) * 2))
    data, buffers = pickling.dumps(call(tensor, lambda: 1))
    assert len(buffers) == 1 and not buffers[0].readonly and tensor.device.type == "cpu"
    (back, function), _ = pickling.loads(data, [bytearray(part) for part in buffers])
    assert back.memory == bytes(range(250)) * 2 and back.shape == (500,) and back.dtype == "uint8" and back.grad
    assert function() == 1
    assert torch.modes == ["off", "on"] * 2


def test_modes_are_left_alone_for_plain_messages(torch):
    pickling.dumps(call(1, "a"))
    assert torch.modes == []


def test_torch_that_is_being_imported(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    assert pickling.loads(*pickling.dumps(call(types.SimpleNamespace(a=1))))[0][0].a == 1
