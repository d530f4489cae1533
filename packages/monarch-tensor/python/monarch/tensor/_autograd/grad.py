"""Gradients one after another, and functions with a backward of their own. Pure Python over `torch.autograd.graph`.

`grad_generator` runs the nodes of the graph itself, on the thread of the caller, in place of torch's engine:

- Every tensor of `with_respect_to` has a *stage*, its position. A node belongs to the first stage whose gradient depends on the node; nodes
  of no stage never run. Ready nodes run by stage, and within a stage by descending sequence number, as in torch's engine.
- A *slot* is an input of a node, `(node, number)`, and has one gradient: the sum of what the nodes above contribute. A node is ready once
  all nodes above have run. The gradient of a slot is dropped with its last use.
- A node is called directly, which runs neither hooks nor checks. The hooks of tensors, `retain_grad`, casts and torch's checks of a
  gradient come from an engine run that begins and ends at the slot, hence runs no node. The hooks of a node are read from the handle of
  a hook that is removed at once.
- Tensors that a node saved are freed once the node has run, as by `torch.autograd.grad` without `retain_graph`: each is packed a second
  time, by a hook that keeps nothing. Tensors under other hooks (checkpoints, offloading) live as long as the graph.

Trade-offs: a node computes the gradients of all its inputs that require one, wanted or not, as the engine alone masks them. A region under
`torch.utils.checkpoint(use_reentrant=False)` is computed again for each tensor that the region saved, and not once, as torch has no number
of the backward by which to remember the first time. Before torch 2.5 an engine run cannot begin at a slot: there the engine computes all
gradients on the first `next()`, and nothing overlaps.
"""

from __future__ import annotations

import functools
import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils import _pytree as pytree

from monarch.tensor._autograd.gradient_context import capture_context, node_context
from monarch.tensor._protocol.torch_internals import (
    AccumulateGrad,
    DisableTorchDispatch,
    backward_hooks,
    metadata_of,
    run_backward,
    sequence_number,
)

_Slot = tuple[Any, int]


def grad_generator(roots: Any = (), with_respect_to: Any = (), grad_roots: Any = ()) -> Iterator[Any]:
    """Yields the gradients of the sum of `roots`, one for each tensor of `with_respect_to` in that order, each as soon as it is final.

    Backward is executed in steps: the part that the first gradient needs, then the rest of what the second one needs, and so on. Between
    two steps the caller reduces and applies the gradients at hand. The order of `with_respect_to` therefore is the order in which backward
    computes the gradients. The fastest is the reverse order of use, for most models `reversed(list(model.parameters()))`;
    `gradient_execution_order` finds it for any graph.

    Each argument is a tensor, a `GradientEdge` (as a root since torch 2.5), an iterable or a pytree of them. Tensors may be leaves or
    intermediate results. `grad_roots` has the gradients of the roots, in their order; a missing one, or None, is 1 for a root of one
    element. A tensor that no root depends on has the gradient None. Nodes that no gradient needs are not run. Hooks of tensors and nodes
    run, and `retain_grad` holds. A gradient is yielded after the hooks of its tensor; `torch.autograd.grad` does so only for tensors below
    which it computes nothing. As after `torch.autograd.grad`, the tensors that the executed part of the graph saved are freed, and a second
    run through that part raises `RuntimeError`. Closing the generator early frees its gradients. The gradients have no graph of their own,
    and may be changed in place unless they are views of others, as where the forward had views.

    Raises at the call: `TypeError` for an argument that is no tensor; `ValueError` for a tensor without `requires_grad`, a missing gradient
    of a root of several elements or of complex numbers, one of another shape than its root, and more gradients than roots.

    >>> weight = torch.ones(2, requires_grad=True)
    >>> bias = torch.zeros(2, requires_grad=True)
    >>> loss = (weight * 3 + bias).sum()
    >>> for parameter, gradient in zip([bias, weight], grad_generator(loss, [bias, weight])):
    ...     parameter.grad = gradient
    """
    starts = _tensors("roots", roots)
    targets = _tensors("with_respect_to", with_respect_to)
    seeds = _seeds(starts, _leaves(grad_roots))
    if not starts:
        return iter([None] * len(targets))
    if _has_metadata(starts):
        return _gradients(_Graph(starts, targets), seeds)
    return _gradients_of_engine(starts, targets, seeds)


def gradient_execution_order(roots: Any, with_respect_to: Any) -> list[int]:
    """The positions in `with_respect_to` in the order in which an undivided backward of `roots` completes the gradients.

    Tensors that no root depends on come last. Nothing is computed. The arguments are those of `grad_generator`.

    >>> weights = [torch.ones(2, 2, requires_grad=True) for _ in range(3)]
    >>> gradient_execution_order((weights[0] @ weights[1] @ weights[2]).sum(), weights)
    [2, 0, 1]
    """
    targets = _tensors("with_respect_to", with_respect_to)
    graph = _Graph(_tensors("roots", roots), targets, stages=False)
    done: dict[_Slot, int] = {slot: 0 for slot in graph.roots if graph.pending.get(slot) == 0}
    heap = [(-sequence_number(node), i, node) for i, node in enumerate(graph.ready())]
    heapq.heapify(heap)
    pushed = len(heap)
    while heap:
        _, _, node = heapq.heappop(heap)
        for _, slot in graph.outputs(node):
            became_final, ready = graph.arrive(slot)
            if became_final:
                done.setdefault(slot, len(done) + 1)
            if ready:
                heapq.heappush(heap, (-sequence_number(slot[0]), pushed, slot[0]))
                pushed += 1
    last = len(done) + 1
    return sorted(range(len(targets)), key=lambda i: last if (slot := graph.targets[i]) is None else done.get(slot, last))


def grad_function(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a function differentiable that returns its result and its backward.

    `fn(*args, **kwargs)` returns `(result, backward)`. `result` is a pytree. `backward` receives one gradient for each tensor of `result`,
    zeros where none arrived. `backward` returns one gradient, or None, for each tensor in `(args, kwargs)` in flattened order, a single one
    without a tuple; or, as in torchmonarch 0.7, for each argument, with None for an argument that is no tensor. Any other number raises
    `ValueError` in backward. `fn` runs without autograd. `backward` runs in the context (mesh and stream) that was in force at the call.

    >>> @grad_function
    ... def scale(x, factor):
    ...     return x * factor, lambda gradient: gradient * factor
    """

    @functools.wraps(fn)
    def differentiable(*args: Any, **kwargs: Any) -> Any:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        call = _Call(fn, leaves, spec)
        tensors = _GradFunction.apply(call, *(leaves[i] for i in call.inputs))
        results = iter(tensors)
        return pytree.tree_unflatten([next(results) if is_tensor else leaf for is_tensor, leaf in call.results], call.result_spec)

    return differentiable


class _Call:
    """One call of a function of `grad_function`. `results` has for each leaf of the result whether it is a tensor, and if not, the leaf."""

    def __init__(self, fn: Callable[..., Any], leaves: list[Any], spec: Any) -> None:
        self.fn = fn
        self.name = getattr(fn, "__name__", repr(fn))
        self.inputs = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        self.leaves = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self.spec = spec
        self.results: list[tuple[bool, Any]] = []
        self.result_spec: Any = None

    def run(self, tensors: Sequence[Any]) -> tuple[list[Any], Callable[..., Any]]:
        leaves = list(self.leaves)
        for i, tensor in zip(self.inputs, tensors, strict=True):
            leaves[i] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        out: Any = self.fn(*args, **kwargs)
        # A tensor has a length too.
        if isinstance(out, torch.Tensor) or not hasattr(out, "__len__") or len(out) != 2 or not callable(out[1]):
            raise TypeError(f"{self.name}: a function of grad_function returns its result and its backward, not {type(out).__name__}")
        result, backward = out
        found, self.result_spec = pytree.tree_flatten(result)
        self.results = [(True, None) if isinstance(leaf, torch.Tensor) else (False, leaf) for leaf in found]
        return [leaf for leaf in found if isinstance(leaf, torch.Tensor)], backward


class _GradFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: Any) -> tuple[Any, ...]:
        ctx.restored = capture_context()
        results, ctx.backward_function = call.run(tensors)
        ctx.name, ctx.inputs, ctx.leaves = call.name, call.inputs, len(call.leaves)
        # These are aliases: the backward may refer to the results, which would refer to it by `grad_fn`, a cycle that no collector sees.
        aliases = tuple(map(_alias, results))
        ctx.mark_non_differentiable(*(a for a in aliases if not (a.dtype.is_floating_point or a.dtype.is_complex)))
        return aliases

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        with ctx.restored():
            result = ctx.backward_function(*gradients)
        found: list[Any] = list(result) if isinstance(result, tuple | list) else [result]  # pyright: ignore[reportUnknownArgumentType]
        if len(found) == len(ctx.inputs):
            return None, *found
        if len(found) == ctx.leaves:
            return None, *(found[i] for i in ctx.inputs)
        raise ValueError(
            f"the backward of {ctx.name} returned {len(found)} gradients, and {ctx.name} was called with {len(ctx.inputs)} tensors"
            "\nhint: return one gradient, or None, for each tensor"
        )


def _alias(tensor: Any) -> Any:
    with node_context([tensor]):  # a result may be on another mesh
        return tensor.detach()


def _is_leaf(value: Any) -> bool:
    return isinstance(value, GradientEdge)


def _leaves(tree: Any) -> list[Any]:
    if isinstance(tree, Iterable) and not isinstance(tree, torch.Tensor | Mapping | tuple | list | str):
        tree = list(tree)  # such as `model.parameters()`  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return pytree.tree_leaves(tree, is_leaf=_is_leaf)


def _tensors(argument: str, tree: Any) -> list[Any]:
    leaves = _leaves(tree)
    for i, leaf in enumerate(leaves):
        if _is_leaf(leaf):
            continue
        if not isinstance(leaf, torch.Tensor):
            raise TypeError(f"{argument}[{i}] is {type(leaf).__name__}, and not a tensor")
        if not leaf.requires_grad:
            raise ValueError(f"{argument}[{i}] does not require a gradient\nhint: set `requires_grad` before the tensor is used")
    return leaves


def _seeds(roots: list[Any], gradients: list[Any]) -> list[Any]:
    """The gradients of the roots."""
    if len(gradients) > len(roots):
        raise ValueError(f"grad_roots has {len(gradients)} gradients for {len(roots)} roots")
    seeds: list[Any] = []
    for i, root in enumerate(roots):
        if _is_leaf(root) and not hasattr(root.node, "_input_metadata"):
            raise TypeError(f"roots[{i}] is a GradientEdge, which torch {torch.__version__} cannot begin at\nhint: use torch 2.5 or later")
        # The metadata of an edge have the same attributes as a tensor.
        like = metadata_of(root.node)[root.output_nr] if _is_leaf(root) else root
        gradient = gradients[i] if i < len(gradients) else None
        if gradient is None:
            shape = tuple(like.shape)
            if torch.Size(shape).numel() != 1 or like.dtype.is_complex:
                kind = f" and dtype {like.dtype}" if like.dtype.is_complex else ""
                raise ValueError(f"roots[{i}] has shape {shape}{kind}, and no gradient is given for it\nhint: pass one in grad_roots")
            with torch.no_grad():
                if like is not root:
                    gradient = torch.ones(shape, dtype=like.dtype, device=like.device)
                else:
                    with node_context([root]):
                        gradient = torch.ones_like(root)
        elif not isinstance(gradient, torch.Tensor):
            raise TypeError(f"grad_roots[{i}] is {type(gradient).__name__}, and neither a tensor nor None")
        elif not (_is_leaf(root) or gradient.is_nested or root.is_nested) and gradient.shape != root.shape:
            raise ValueError(f"grad_roots[{i}] has shape {tuple(gradient.shape)}, and roots[{i}] has shape {tuple(root.shape)}")
        seeds.append(gradient)
    return seeds


def _has_metadata(roots: list[Any]) -> bool:
    """Whether nodes have metadata, as since torch 2.5, with which engine runs can begin at any slot."""
    return hasattr(_slot(roots[0])[0], "_input_metadata")


def _slot(tensor: Any) -> _Slot:
    if _is_leaf(tensor):
        return tensor.node, tensor.output_nr
    node = tensor.grad_fn
    if node is not None:
        return node, tensor.output_nr
    edge = get_gradient_edge(tensor)
    return edge.node, edge.output_nr


class _Graph:
    """The part of the graph between roots and targets. Nodes are keys: the references here keep their wrappers, hence their identity."""

    def __init__(self, roots: list[Any], targets: list[Any], *, stages: bool = True) -> None:
        self.roots = [_slot(root) for root in roots]
        self._metadata: dict[Any, Sequence[Any]] = {}
        users: dict[_Slot, list[Any]] = defaultdict(list)
        slots: dict[Any, set[int]] = defaultdict(set)
        leaves: dict[int, Any] = {}
        for node, number in self.roots:
            slots[node].add(number)
        # Insertion order is the order of the walk.
        seen: dict[Any, None] = dict.fromkeys(node for node, _ in self.roots)
        walk = list(seen)
        while walk:
            node = walk.pop()
            if isinstance(node, AccumulateGrad):
                leaves[id(node.variable)] = node
            for below, number in node.next_functions:
                if below is None:
                    continue
                users[below, number].append(node)
                slots[below].add(number)
                if below not in seen:
                    seen[below] = None
                    walk.append(below)
        self.targets = [self._target(target, leaves, seen) for target in targets]

        self.stage: dict[Any, int] = {}
        for i, slot in enumerate(self.targets):
            above = list(users[slot]) if slot is not None else []
            while above:
                node = above.pop()
                if node not in self.stage:
                    self.stage[node] = i if stages else 0
                    for number in slots[node]:
                        above.extend(users[node, number])
        # Contributions that are still missing, for each slot whose gradient is used, and for each node that runs.
        self.pending: dict[_Slot, int] = {}
        used = {(node, number) for node in self.stage for number in slots[node]}
        for slot in used.union(slot for slot in self.targets if slot is not None):
            self.pending[slot] = sum(user in self.stage for user in users[slot])
        self.remaining = {node: sum(self.pending[node, number] for number in slots[node]) for node in self.stage}

    @staticmethod
    def _target(target: Any, leaves: dict[int, Any], seen: dict[Any, None]) -> _Slot | None:
        # A leaf has the number of its node only in a graph that uses it; a query for the node is one more operation on the tensor.
        if not _is_leaf(target) and target.grad_fn is None:
            node = leaves.get(id(target))
            return None if node is None else (node, 0)
        slot = _slot(target)
        return slot if slot[0] in seen else None

    def ready(self) -> list[Any]:
        return [node for node, remaining in self.remaining.items() if remaining == 0]

    def outputs(self, node: Any) -> list[tuple[int, _Slot]]:
        """The edges of a node to slots whose gradient is used, with their positions."""
        return [(i, slot) for i, slot in enumerate(node.next_functions) if slot in self.pending]

    def metadata(self, node: Any) -> Sequence[Any]:
        """The shapes and dtypes of the slots of a node."""
        found = self._metadata.get(node)
        if found is None:
            found = self._metadata[node] = metadata_of(node)
        return found

    def arrive(self, slot: _Slot) -> tuple[bool, bool]:
        """Counts one contribution: whether the gradient of the slot is final now, and whether its node is to run."""
        self.pending[slot] -= 1
        if slot[0] not in self.remaining:
            return self.pending[slot] == 0, False
        self.remaining[slot[0]] -= 1
        return self.pending[slot] == 0, self.remaining[slot[0]] == 0


def _gradients(graph: _Graph, seeds: list[Any]) -> Iterator[Any]:
    sums: dict[_Slot, Any] = {}
    final: set[_Slot] = set()
    # Nodes that have not run, which need the gradients of their slots.
    waiting = set(graph.stage)
    # The number of times that a target must still be yielded.
    wanted: dict[_Slot, int] = defaultdict(int)
    for slot in graph.targets:
        if slot is not None:
            wanted[slot] += 1

    def add(slot: _Slot, gradient: Any) -> None:
        gradient = _reduced(gradient, slot[0], graph.metadata(slot[0])[slot[1]])
        present = sums.get(slot)
        if present is not None:
            # The addition is not in place, as several slots may share a gradient. Sparse and dense tensors add up in one order only.
            gradient = gradient + present if present.is_sparse else present + gradient
        sums[slot] = gradient

    def gradient_of(slot: _Slot) -> Any:
        gradient = sums.get(slot)
        if gradient is not None and slot not in final:
            final.add(slot)
            gradient = sums[slot] = _with_hooks(slot, gradient)
        return gradient

    def run(node: Any) -> None:
        waiting.discard(node)
        slots = [(node, i) for i in range(len(graph.metadata(node)))]
        defined = [gradient for slot in slots if (gradient := sums.get(slot)) is not None]
        edges = graph.outputs(node)
        if defined:
            with node_context(defined):
                defined.clear()
                gradients = [gradient_of(slot) for slot in slots]
                for slot in slots:
                    if slot not in wanted:
                        sums.pop(slot, None)
                outputs = _called(node, gradients, graph.metadata(node))
                for i, slot in edges:
                    if outputs[i] is not None:
                        add(slot, outputs[i])
            _release(node)
        for _, slot in edges:
            if graph.arrive(slot)[1]:
                push(slot[0])

    heap: list[tuple[int, int, int, Any]] = []
    pushed = 0

    def push(node: Any) -> None:
        nonlocal pushed
        pushed += 1
        heapq.heappush(heap, (graph.stage[node], -sequence_number(node), pushed, node))

    with torch.no_grad():
        for slot, seed in zip(graph.roots, seeds, strict=True):
            if slot in graph.pending:
                with node_context([seed]):
                    add(slot, seed)
    seeds.clear()
    for node in graph.ready():
        push(node)
    for i, slot in enumerate(graph.targets):
        gradient: Any = None
        with torch.no_grad():
            while heap and heap[0][0] <= i:
                run(heapq.heappop(heap)[-1])
            if slot is not None:
                present = sums.get(slot)
                if present is not None:
                    with node_context([present]):
                        gradient = gradient_of(slot)
                    del present
                wanted[slot] -= 1
                if not wanted[slot]:
                    del wanted[slot]
                    if slot[0] not in waiting:
                        sums.pop(slot, None)
                # An addition passes one gradient to both operands. The caller may reduce this one in place before the other is used.
                if gradient is not None and any(other is gradient for other in sums.values()):
                    with node_context([gradient]):
                        gradient = gradient.clone()
        # The caller alone keeps the gradient.
        result = [gradient]
        del gradient
        yield result.pop()


def _gradients_of_engine(roots: list[Any], targets: list[Any], seeds: list[Any]) -> Iterator[Any]:
    found = list(torch.autograd.grad(roots, targets, seeds, allow_unused=True)) if targets else []
    found.reverse()
    while found:
        yield found.pop()


def _reduced(gradient: Any, node: Any, metadata: Any) -> Any:
    """Sums over dimensions that the forward had broadcast, which backward formulas leave to the engine."""
    if gradient.is_nested or metadata.is_nested_tensor:
        return gradient
    shape = tuple(metadata.shape)
    if gradient.shape == shape:
        return gradient
    if len(shape) > gradient.dim() or any(n not in (1, m) for n, m in zip(shape[::-1], gradient.shape[::-1], strict=False)):
        raise RuntimeError(f"{node.name()} received a gradient of shape {tuple(gradient.shape)}, and expected shape {shape}")
    return gradient.sum_to_size(shape)


def _with_hooks(slot: _Slot, gradient: Any) -> Any:
    """The gradient after the hooks of the tensor: the engine begins and ends at its slot."""
    node, number = slot
    if isinstance(node, AccumulateGrad):
        # Most leaves have no hooks, and an engine run costs several microseconds.
        leaf = node.variable
        if not backward_hooks(leaf) and leaf.dtype == gradient.dtype:
            return gradient
    edges = (GradientEdge(node, number),)
    # `torch.autograd.grad` would do more work around the call than the call itself.
    return run_backward(edges, (gradient,), True, False, edges, allow_unreachable=False, accumulate_grad=False)[0]


def _hooks(register: Callable[[Callable[..., Any]], Any]) -> list[Callable[..., Any]]:
    handle = register(_no_hook)
    hooks = handle.hooks_dict_ref()
    handle.remove()
    return list(hooks.values())


def _no_hook(*arguments: Any) -> None:
    pass


def _tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)  # pyright: ignore[reportUnknownVariableType]


def _called(node: Any, gradients: list[Any], metadata: Sequence[Any]) -> Sequence[Any]:
    """The gradients of a node's edges, in the order of `next_functions`."""
    inputs = tuple(gradients)
    for hook in _hooks(node.register_prehook):
        changed = hook(inputs)
        if changed is not None:
            inputs = _tuple(changed)
    outputs = _called_python(node, inputs, metadata) if isinstance(node, BackwardCFunction) else _tuple(node(*inputs))
    for hook in _hooks(node.register_hook):
        changed = hook(outputs, inputs)
        if changed is not None:
            outputs = _tuple(changed)
    return outputs


def _called_python(node: Any, inputs: tuple[Any, ...], metadata: Sequence[Any]) -> tuple[Any, ...]:
    """Calls a custom function as torch's engine does: missing gradients are zeros, outputs are those of the tensor inputs."""
    present = next((gradient for gradient in inputs if gradient is not None), None)
    if present is not None:
        # The engine leaves None if the function requested it. The function's setting cannot be read, and zeros are right in any case.
        inputs = tuple(
            present.new_zeros(tuple(of_one.shape), dtype=of_one.dtype) if gradient is None else gradient
            for gradient, of_one in zip(inputs, metadata, strict=True)
        )
    outputs = _tuple(node.apply(*inputs))
    needed = node.needs_input_grad
    extra = outputs[len(needed) :]
    if len(outputs) < len(needed) or any(gradient is not None for gradient in extra):
        raise RuntimeError(f"function {node.name()} returned an incorrect number of gradients (expected {len(needed)}, got {len(outputs)})")
    # `next_functions` has nothing for arguments that are no tensors, and None for tensors that need no gradient.
    wanted = iter([gradient for gradient, is_needed in zip(outputs, needed, strict=False) if is_needed])
    return tuple(None if below is None else next(wanted) for below, _ in node.next_functions)


_names_of_saved: dict[Any, list[str]] = {}


def _keep_nothing(tensor: Any) -> None:
    pass


def _freed(packed: None) -> Any:
    raise RuntimeError(
        "trying to backward through the graph a second time: a generator of gradients has freed the tensors that the graph saved"
        "\nhint: compute the result again"
    )


def _release(node: Any) -> None:
    """Frees what the node saved for its backward. No operation is dispatched for it."""
    names = _names_of_saved.get(type(node))
    if names is None:
        names = _names_of_saved[type(node)] = [name for name in dir(node) if name.startswith("_raw_saved_")]
    if not names:
        return
    with DisableTorchDispatch():
        for name in names:
            try:
                saved: Any = getattr(node, name)
            except RuntimeError:  # freed already
                continue
            for tensor in _tuple(saved):
                try:
                    tensor.register_hooks(_keep_nothing, _freed)
                except (RuntimeError, AttributeError):  # the node has hooks, or no tensor was saved
                    continue
