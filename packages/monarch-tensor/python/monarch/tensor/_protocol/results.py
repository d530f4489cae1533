"""Results of remote functions as the controller and the workers describe them: a pytree with layouts in the places of tensors."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.utils import _pytree

from monarch.tensor._protocol.layout import Layout, layout_of
from monarch.tensor._protocol.opaque_ref import OpaqueRef


class Results(NamedTuple):
    """What a call returns, without data: the pytree, with places of tensors, and their layouts. That of an `OpaqueRef` is its class."""

    leaves: tuple[Any, ...]
    spec: Any
    layouts: tuple[Any, ...]


class _Leaf(NamedTuple):
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]


def describe_results(out: Any) -> Results:
    """The pytree of a result with its tensors as layouts, and the class in the place of an `OpaqueRef`."""
    leaves, spec = _pytree.tree_flatten(out)
    layouts: list[Layout | type[OpaqueRef]] = []
    shown: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            shown.append(_Leaf(len(layouts)))
            layouts.append(layout_of(leaf))
        elif isinstance(leaf, OpaqueRef):
            shown.append(_Leaf(len(layouts)))
            layouts.append(OpaqueRef)
        else:
            shown.append(leaf)
    return Results(tuple(shown), spec, tuple(layouts))


def listed(layouts: tuple[Any, ...]) -> Results:
    """Of a function that returns a list of tensors."""
    leaves, spec = _pytree.tree_flatten([_Leaf(i) for i in range(len(layouts))], is_leaf=lambda v: isinstance(v, _Leaf))
    return Results(tuple(leaves), spec, layouts)


def filled_results(results: Results, made: list[Any]) -> Any:
    """The pytree with these tensors and references."""
    if results.spec is None:
        return None
    return _pytree.tree_unflatten([made[leaf.index] if isinstance(leaf, _Leaf) else leaf for leaf in results.leaves], results.spec)
