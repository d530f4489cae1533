"""Tensors in messages: they arrive on the CPU, their memory is sent out of band. Loaded only if the user loaded torch."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from pickle import PickleBuffer
from typing import Any


def modes_off() -> AbstractContextManager[Any]:
    """Switches the dispatch modes of torch off in this thread, as during pickling and unpickling of a message; no effect without torch.

    Ctrl-C between any two instructions leaves the modes as they were.
    """
    dispatch: Any = sys.modules.get("torch.utils._python_dispatch")
    disable = getattr(dispatch, "_disable_current_modes", None)
    if disable is None:
        return nullcontext()
    if not hasattr(dispatch, "_get_current_dispatch_mode_stack"):
        return disable()
    return _ModesOff(dispatch) if dispatch._get_current_dispatch_mode_stack() else disable()


class _ModesOff:
    """Switches the modes off and on. Torch removes modes from their stack before it can restore them: Ctrl-C in between would lose them."""

    def __init__(self, dispatch: Any) -> None:
        self._dispatch = dispatch
        self._stack: list[Any] = dispatch._get_current_dispatch_mode_stack()
        self._inner: Any = None

    def __enter__(self) -> None:
        try:
            self._inner = self._dispatch._disable_current_modes()
            self._inner.__enter__()
        except BaseException:
            self._restore()
            raise

    def __exit__(self, *error: object) -> None:
        try:
            self._inner.__exit__(None, None, None)
        except BaseException:
            self._restore()
            raise

    def _restore(self) -> None:
        dispatch = self._dispatch
        for _ in dispatch._get_current_dispatch_mode_stack():
            dispatch._pop_mode()
        for mode in self._stack:
            dispatch._push_mode(mode)


def reduce(obj: Any) -> Any:
    """For `reducer_override`: plain dense tensors as memory, storages of devices copied to the CPU, all others by torch's own reduction."""
    torch: Any = sys.modules.get("torch")
    tensor = getattr(torch, "Tensor", None)
    kind: Any = type(obj)  # pyright: ignore[reportUnknownVariableType]
    if tensor is None:
        return NotImplemented
    if kind is tensor:
        return _dense(torch, obj)
    storage = kind.__name__ in ("UntypedStorage", "TypedStorage") and kind.__module__.startswith("torch.")
    if storage and obj.device.type not in ("cpu", "meta"):
        return obj.cpu().__reduce__()
    return NotImplemented


def _dense(torch: Any, obj: Any) -> Any:
    if obj.layout is not torch.strided or obj.is_quantized or obj.device.type == "meta" or obj.__dict__:
        return NotImplemented
    import ctypes

    plain = obj.detach().resolve_conj().resolve_neg().cpu().contiguous()
    size = plain.numel() * plain.element_size()
    memory: Any = b""
    if size:
        # This works without numpy, which torch does not need: the array shows the tensor's memory and keeps the tensor.
        memory = (ctypes.c_char * size).from_address(plain.data_ptr())
        memory.tensor = plain
        memory = PickleBuffer(memory)
    return (_rebuild, (memory, obj.dtype, tuple(obj.shape), obj.requires_grad))


def _rebuild(memory: Any, dtype: Any, shape: tuple[int, ...], requires_grad: bool) -> Any:
    torch: Any = sys.modules["torch"]  # loaded by then: the dtype comes from it
    if len(memory):
        made = torch.frombuffer(memory, dtype=dtype).reshape(shape)
    else:
        made = torch.empty(shape, dtype=dtype, device="cpu")
    return made.requires_grad_() if requires_grad else made
