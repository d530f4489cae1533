"""What remote functions return, beside what was propagated for them."""

from __future__ import annotations

from typing import Any, cast

import torch

from monarch.tensor._protocol.layout import Layout, describe


class UnexpectedResult(Exception):
    """A remote function returned something else than it was to return."""


def checked_results(name: str, out: Any, expected: tuple[Any, ...]) -> list[Any]:
    """The leaves of what a remote function returned, which are to have these layouts; None stands for an object of any kind."""
    from torch.utils import _pytree

    from monarch.tensor._protocol.opaque_ref import OpaqueRef

    if expected == (None,):
        return [out]
    leaves: list[Any] = [v for v in _pytree.tree_leaves(out) if isinstance(v, torch.Tensor | OpaqueRef)]
    if len(leaves) != len(expected):
        kind = cast("type[Any]", type(out))
        unknown = out is not None and not isinstance(out, torch.Tensor) and _pytree.tree_is_leaf(out)
        hint = (
            f": {kind.__module__}.{kind.__qualname__} is not registered as a pytree there, by a module that is imported" if unknown else ""
        )
        raise UnexpectedResult(f"{name} returned {len(leaves)} tensors, and {len(expected)} were propagated for it{hint}")
    for i, (value, layout) in enumerate(zip(leaves, expected, strict=True)):
        if isinstance(value, OpaqueRef) != (layout is OpaqueRef):
            got, wanted = ("an OpaqueRef", layout.describe()) if isinstance(layout, Layout) else (type(value).__name__, "an OpaqueRef")
            raise UnexpectedResult(f"{name} returned {got} as its result {i}, and {wanted} was propagated for it")
        if isinstance(layout, Layout):
            if tuple(value.shape) != layout.shape or value.dtype != layout.dtype or value.layout is not torch.strided:
                got = describe(value.dtype, value.shape) + ("" if value.layout is torch.strided else f" in the format {value.layout}")
                raise UnexpectedResult(f"{name} returned {got} as its tensor {i}, and {layout.describe()} was propagated for it")
            # The bits of a lazy conjugation are resolved, because the controller does not track them.
            value = value.detach() if layout.bits else value.detach().resolve_conj().resolve_neg()
            leaves[i] = value if _has_strides(value, layout) else _with_strides(value, layout)
    return leaves


def _has_strides(value: torch.Tensor, layout: Layout) -> bool:
    """Whether the same views of it exist as of the tensor of the controller. An expanded tensor has fewer there."""
    pairs = zip(layout.shape, value.stride(), layout.stride, strict=True)
    return value.stride() == layout.stride or 0 in layout.stride or all(one == other for size, one, other in pairs if size != 1)


def _with_strides(value: torch.Tensor, layout: Layout) -> torch.Tensor:
    return torch.empty_strided(layout.shape, layout.stride, dtype=value.dtype, device=value.device).copy_(value)
