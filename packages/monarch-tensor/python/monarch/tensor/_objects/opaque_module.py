"""Modules of torch that are constructed on each rank, with gradients that reach the controller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree

from monarch.tensor._autograd.grad import grad_function
from monarch.tensor._functions.remote_function import Remote, propagated
from monarch.tensor._objects.opaque_object import OpaqueObject
from monarch.tensor._protocol.layout import contiguous_layout
from monarch.tensor._protocol.opaque_ref import OpaqueRef
from monarch.tensor._protocol.results import Results, listed
from monarch.tensor._worker import objects

if TYPE_CHECKING:
    from collections.abc import Callable

_parameters = Remote(objects.parameters, "inspect")
_forward = Remote(objects.forward)
_backward = Remote(objects.backward)


class OpaqueModule(OpaqueObject):
    """A `torch.nn.Module` of each rank of the active mesh, constructed there as an `OpaqueObject` is.

    Autograd reaches through its calls: arguments and parameters get gradients. The graph of a call is on the workers, where backward
    frees it: it is differentiated once. Gradients have no graph of their own.
    """

    def __init__(self, constructor: Callable[..., Any] | str, *args: Any, **kwargs: Any) -> None:
        super().__init__(constructor, *args, **kwargs)
        self._parameters: list[Any] | None = None
        self._known: dict[Any, Results] = {}

    def parameters(self) -> list[Any]:
        """The parameters as mesh tensors that share memory with those of the module. The first call asks rank 0 for their shapes."""
        if self._parameters is None:
            self._parameters = [parameter.requires_grad_(needed) for parameter, needed in _parameters(self)]
        return list(self._parameters)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the module. Rank 0 is asked for the shapes of the results of the first call with arguments of these shapes and values.

        Where shapes depend on anything else, `call_method("forward", propagation, ...)` gives them.
        """
        return self._differentiable("__call__", None, args, kwargs)

    def call_method(self, name: str, propagation: Callable[..., Any] | str | None, *args: Any, **kwargs: Any) -> Any:
        """As that of `OpaqueObject`, and with gradients, if an argument or a parameter requires one, unless `propagation` is None."""
        if propagation is None or not torch.is_grad_enabled():
            return super().call_method(name, propagation, *args, **kwargs)
        if propagation != "inspect" and not callable(propagation):
            raise ValueError(
                f"call_method({name!r}, {propagation!r}): the method is on the workers; expected a function, 'inspect' or None"
            )
        return self._differentiable(name, propagation, args, kwargs)

    def _differentiable(self, name: str, propagation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        enabled = torch.is_grad_enabled()
        tensors = [v for v in _pytree.tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)]
        needs = tuple(enabled and t.requires_grad for t in tensors)
        learned = [p for p in self.parameters() if p.requires_grad] if enabled else []

        def run(given: tuple[Any, ...], named: dict[str, Any], _: Any) -> tuple[Any, Callable[..., Any]]:
            out, graph = self._forward(name, propagation, needs, given, named)
            of = [t for t, needed in zip(tensors, needs, strict=True) if needed] + learned
            layouts = tuple(contiguous_layout(tuple(t.shape), t.dtype, t.device) for t in of)
            places = iter(range(len(of)))
            # One item for each tensor of the arguments, and one for each parameter.
            wanted = [next(places) if needed else None for needed in (*needs, *(True for _ in learned))]

            def backward(*gradients: Any) -> list[Any]:
                found = _backward.with_results(listed(layouts), (graph, list(gradients)), {})
                return [None if place is None else found[place] for place in wanted]

            return out, backward

        if not any(needs) and not learned:
            return run(args, kwargs, ())[0]
        return grad_function(run)(args, kwargs, learned)

    def _forward(self, name: str, propagation: Any, needs: tuple[bool, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the method returns, and the graph."""
        place = _forward.place((self, args), kwargs)
        given = _forward.arguments(place, (self, name, needs, args, kwargs), {})
        if callable(propagation):

            def both(*args: Any, **kwargs: Any) -> tuple[Any, OpaqueRef]:
                return propagation(*args, **kwargs), OpaqueRef()

            return _forward.emitted(place, given, propagated(both, args, kwargs))
        known = self._known.get(given.key) if propagation is None and given.key is not None else None
        if known is not None:
            return _forward.emitted(place, given, known)
        results, out = _forward.inspected(place, given)
        if given.key is not None:
            self._known[given.key] = results
        return out
