"""Blocks in which a mesh, a stream, or none is active."""

from __future__ import annotations

import sys
from typing import Any, Generic, TypeVar

from torch.utils import _python_dispatch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, _pop_mode

from monarch.tensor._controller.active import active
from monarch.tensor._controller.place import place_of
from monarch.tensor._tensors.dispatch import MeshMode
from monarch.tensor.errors import TensorMeshError

# The mesh of an activation, or None for `no_mesh`; and a stream. Their classes are in a module that needs this one.
_M = TypeVar("_M")
_S = TypeVar("_S")

_is_finalizing = sys.is_finalizing
# Torch's state beside its stack of modes: each mode keeps the previous values.
_torch: dict[str, Any] = _python_dispatch.__dict__
_FLAGS = [name for name in _torch if name.startswith("_is_in_")]
_FLAG_OF_GUARDS = "_is_in_any_mode_without_ignore_compile_internals"


class Activation:
    """Puts a mode on the stack of this thread, and takes it off. Ctrl-C may come between any two instructions of it."""

    def __init__(self) -> None:
        self._mode: MeshMode | None = None
        self._before: tuple[Any, Any] = (None, None)
        self._flags: dict[str, bool] = {}

    def _enter(self, mesh: Any, stream: Any) -> None:
        if self._mode is not None:
            raise RuntimeError("this activation is in force already: make another one")
        self._before = (active.mesh, active.stream)
        self._flags = {name: _torch[name] for name in _FLAGS}
        try:
            active.mesh, active.stream = mesh, stream
            self._mode = MeshMode(None if mesh is None else place_of(mesh, stream or mesh.main_stream))
            self._mode.__enter__()
        except BaseException:
            self._undo()
            raise

    def __exit__(self, *error: Any) -> None:
        try:
            left = self._leave()
        except BaseException:
            self._undo()
            raise
        if not left:
            raise RuntimeError(
                "an activation is left that is not the innermost one of this thread: activations end in the reverse order of their "
                "beginning. Tasks of asyncio that await within activations share their thread's: give each a thread of its own."
            )

    def _leave(self) -> bool:
        """False where the activation is not the innermost one of this thread."""
        mode = self._mode
        # A generator that is suspended in an activation is closed when the interpreter has dismantled torch.
        if mode is not None and not _is_finalizing():
            if _innermost() is not mode:
                return False
            mode.__exit__(None, None, None)
        active.mesh, active.stream = self._before
        self._mode = None
        return True

    def _undo(self) -> None:
        """Leaves what may be entered, or left, in part."""
        mode = self._mode
        if mode is not None and not _is_finalizing():
            stack = _get_current_dispatch_mode_stack()
            if any(m is mode for m in stack):
                if stack[-1] is not mode:
                    return
                _pop_mode()
            _torch.update(self._flags)
            if _FLAG_OF_GUARDS in self._flags:
                _python_dispatch.set_is_in_mode_without_ignore_compile_internals(self._flags[_FLAG_OF_GUARDS])
        active.mesh, active.stream = self._before
        self._mode = None


def _innermost() -> Any:
    stack = _get_current_dispatch_mode_stack()
    return stack[-1] if stack else None


def _check_nesting(mesh: Any) -> None:
    outer = active.mesh
    if mesh is not None and outer is not None and outer.controller is not mesh.controller:
        raise TensorMeshError(
            f"{mesh!r} cannot be activated inside of an activation of {outer!r}: they are procs of two controllers. Leave that one first, "
            "or activate a mesh of procs that has both."
        )


class MeshActivation(Activation, Generic[_M]):
    """For `activate` of a mesh, and of `no_mesh`."""

    def __init__(self, mesh: _M) -> None:
        super().__init__()
        self._mesh = mesh

    def __enter__(self) -> _M:
        _check_nesting(self._mesh)
        self._enter(self._mesh, active.stream)
        return self._mesh


class StreamActivation(Activation, Generic[_S]):
    """For `Stream.activate`."""

    def __init__(self, stream: _S) -> None:
        super().__init__()
        self._stream = stream

    def __enter__(self) -> _S:
        self._enter(active.mesh, self._stream)
        return self._stream
