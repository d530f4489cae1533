"""What `OpaqueObject` and `OpaqueModule` run on the workers."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils import _pytree

from monarch.tensor._protocol.opaque_ref import OpaqueRef

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def construct(constructor: Callable[..., Any] | str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OpaqueRef:
    if isinstance(constructor, str):
        module, _, name = constructor.rpartition(".")
        constructor = getattr(importlib.import_module(module), name)
        assert not isinstance(constructor, str)
    return OpaqueRef(constructor(*args, **kwargs))


def call_method(ref: OpaqueRef, name: str, /, *args: Any, **kwargs: Any) -> Any:
    return getattr(ref.value, name)(*args, **kwargs)


def parameters(ref: OpaqueRef) -> list[tuple[Any, bool]]:
    """The parameters of a module, and whether each one requires a gradient."""
    return [(p, p.requires_grad) for p in ref.value.parameters()]


class Graph(NamedTuple):
    """A call of a module: the tensors with respect to which it is differentiated, and the tensors that it returned."""

    inputs: list[Any]
    outputs: list[Any]


def forward(ref: OpaqueRef, name: str, needs: tuple[bool, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, OpaqueRef]:
    """Calls a method of a module. `needs` has for each tensor of the arguments whether its gradient is wanted."""
    leaves, spec = _pytree.tree_flatten((args, kwargs))
    wanted = iter(needs)
    leaves = [v.detach().requires_grad_(next(wanted)) if isinstance(v, torch.Tensor) else v for v in leaves]
    inputs = [v for v in leaves if isinstance(v, torch.Tensor) and v.requires_grad]
    given, named = _pytree.tree_unflatten(leaves, spec)
    out = getattr(ref.value, name)(*given, **named)
    outputs = [v for v in _pytree.tree_leaves(out) if isinstance(v, torch.Tensor)]
    inputs += [p for p in ref.value.parameters() if p.requires_grad]
    return out, OpaqueRef(Graph(inputs, outputs))


def backward(graph: OpaqueRef, gradients: Sequence[Any]) -> list[Any]:
    """The gradients of the inputs of a graph, contiguous as the controller expects them: zeros where no output depends on one."""
    inputs, outputs = graph.value
    pairs = [(out, gradient) for out, gradient in zip(outputs, gradients, strict=True) if out.requires_grad]
    if not pairs:
        return [_zeros(v) for v in inputs]
    found = torch.autograd.grad([out for out, _ in pairs], inputs, [gradient for _, gradient in pairs], allow_unused=True)
    return [_zeros(v) if g is None else g.contiguous() for v, g in zip(inputs, found, strict=True)]


def _zeros(like: Any) -> Any:
    return torch.zeros(like.shape, dtype=like.dtype, device=like.device)
