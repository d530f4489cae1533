"""Runs the stages of a model over microbatches, in the order of a schedule.

Each mesh has the forwards and backwards of its stages on the compute stream. Activations go between meshes on the other stream, and
gradients on one of their own, by borrows at both ends, so that a mesh computes while they travel:

- The sender's borrow ends once the mesh's next action is issued. The compute stream waits there for a movement that has had that time.
- The receiver copies what came to memory of the compute stream. Its borrow ends with the next action, which the movements of the action
  after that do not precede.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.utils import _pytree

from monarch.tensor._tensors.mesh import Stream, mesh_of
from monarch.tensor._tensors.tensor_base import is_mesh_tensor
from monarch.tensor.pipelining.schedules import Action, in_one_order
from monarch.tensor.pipelining.schedules import schedule as ordered

if TYPE_CHECKING:
    from monarch.actor import ProcMesh
    from monarch.tensor._tensors.borrow import Borrow
    from monarch.tensor._tensors.mesh import DeviceMesh


class PipelineParallelism:
    """A model in stages, of which stage `s` runs on mesh `s % len(meshes)`.

    `meshes` are slices of one activated mesh that differ along one dimension. A stage is a module, or a function, whose parameters were
    made with its mesh active, on `compute_stream`. It is called with what the stage before it returned, a tensor or a tuple of tensors.
    `loss_fn(output, y)` returns the loss of a microbatch, one number; without it the last stage is called with `y` as its last argument,
    and returns the loss. The loss of the batch is the mean of those of the microbatches, or with `loss_reduction="sum"` their sum.

    | `schedule` | order on a mesh |
    |---|---|
    | `"dora-dfs"` | depth first: what is nearest to the end of its microbatch; any number of stages and microbatches |
    | `"gpipe"` | all forwards, then all backwards |
    | `"1f1b"` | a forward and a backward in turn; one stage for each mesh |
    | `"interleaved"` | the same with several stages for each mesh; microbatches in multiples of the meshes |

    `ValueError` for an unknown schedule, a batch that is no multiple of the microbatch, and stages or microbatches that do not fit.
    """

    def __init__(
        self,
        meshes: Sequence[DeviceMesh | ProcMesh],
        stages: Sequence[Callable[..., Any]],
        compute_stream: Stream,
        p2p_stream: Stream,
        schedule: str = "dora-dfs",
        batch_size: int = 4,
        microbatch_size: int = 1,
        loss_fn: Callable[[Any, Any], Any] | None = None,
        *,
        loss_reduction: Literal["mean", "sum"] = "mean",
    ) -> None:
        for i, stage in enumerate(stages):
            if not callable(stage):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"stages[{i}] is {type(stage).__name__}, and neither a module nor a function")
        if microbatch_size < 1 or batch_size < 1 or batch_size % microbatch_size:
            raise ValueError(f"a batch of {batch_size} cannot be cut into microbatches of {microbatch_size}")
        if loss_reduction not in ("mean", "sum"):
            raise ValueError(f"loss_reduction is {loss_reduction!r}, and neither 'mean' nor 'sum'")
        self.meshes = [mesh_of(mesh) for mesh in meshes]
        self.stages = list(stages)
        self.compute_stream = compute_stream
        self.p2p_stream = p2p_stream
        # The stream of the other direction: a missing gradient delays no activation that is ready.
        self.gradient_stream = Stream(f"{p2p_stream.name}, gradients")
        self.batch_size = batch_size
        self.microbatch_size = microbatch_size
        self.microbatches = batch_size // microbatch_size
        self.loss_fn = loss_fn
        self._weight = 1 / self.microbatches if loss_reduction == "mean" else 1.0
        order = ordered(schedule, len(self.meshes), len(self.stages), self.microbatches)
        self._actions = in_one_order(order, len(self.stages))

    def run(self, x: Any, y: Any = None) -> list[Any]:
        """The losses of the microbatches, on the last mesh; gradients are added to the `grad` of the stages' parameters.

        `x` is a tensor or a tuple of tensors of the first mesh, and `y` a pytree of tensors of the last one, both with the batch as first
        dimension. Without `y` only forwards are run, without autograd, and the outputs are returned. `ValueError` for tensors of another
        mesh or size.
        """
        inputs = self._cut("x", _as_tuple(x), self.meshes[0])
        targets = None if y is None else self._cut("y", y, self.meshes[(len(self.stages) - 1) % len(self.meshes)])
        actions = self._actions if targets is not None else [a for a in self._actions if a.kind == "forward"]
        with torch.set_grad_enabled(targets is not None):
            run = _Run(self, inputs, targets, self._weight)
            try:
                for action in actions:
                    run.act(action)
            finally:
                run.end()
        return run.results

    def _cut(self, name: str, tree: Any, mesh: DeviceMesh) -> list[Any]:
        """The parts of the microbatches."""
        leaves, spec = _pytree.tree_flatten(tree)
        for leaf in leaves:
            if not is_mesh_tensor(leaf):
                continue
            if leaf.mesh != mesh:
                raise ValueError(f"{name} has a tensor of {leaf.mesh!r}, and that stage is on {mesh!r}: move it with `to_mesh`")
            if leaf.stream is not self.compute_stream:
                raise ValueError(f"{name} has a tensor of {leaf.stream!r}, and stages run on {self.compute_stream!r}: borrow it")
            if not leaf.shape or leaf.shape[0] != self.batch_size:
                raise ValueError(f"{name} has a tensor of shape {list(leaf.shape)}: expected a batch of {self.batch_size}")
        with self.compute_stream.activate(), mesh.activate():
            parts = [leaf.split(self.microbatch_size) if is_mesh_tensor(leaf) else self._cut_local(name, leaf, mesh) for leaf in leaves]
        return [_pytree.tree_unflatten([part[i] for part in parts], spec) for i in range(self.microbatches)]

    def _cut_local(self, name: str, leaf: Any, mesh: DeviceMesh) -> list[Any]:
        if isinstance(leaf, torch.Tensor):
            raise ValueError(f"{name} has a local tensor, and that stage is on {mesh!r}: make it with that mesh active")
        return [leaf] * self.microbatches


class _Kept:
    """What the backward of a stage for one microbatch needs from the forward."""

    def __init__(self, inputs: list[Any], outputs: list[Any]) -> None:
        self.inputs = inputs
        self.outputs = outputs


class _Moved:
    """Tensors for a stage: on its mesh and the stream of movements, or on its compute stream already. `requires_grad` has one for each."""

    def __init__(self, tensors: list[Any], requires_grad: list[bool], on_the_way: bool) -> None:
        self.tensors = tensors
        self.requires_grad = requires_grad
        self.on_the_way = on_the_way


class _Run:
    """One batch."""

    def __init__(self, pipeline: PipelineParallelism, inputs: list[Any], targets: list[Any] | None, weight: float) -> None:
        self._pipeline = pipeline
        self._weight = weight
        self._inputs = inputs
        self._targets = targets
        self._last = len(pipeline.stages) - 1
        self._moved: dict[Action, _Moved] = {}
        self._kept: dict[tuple[int, int], _Kept] = {}
        # By mesh: the borrows of the last action.
        self._received: list[list[Borrow]] = [[] for _ in pipeline.meshes]
        self._sent: list[list[Borrow]] = [[] for _ in pipeline.meshes]
        self.results: list[Any] = [None] * pipeline.microbatches

    def act(self, action: Action) -> None:
        """Issues an action and the movement of its results."""
        pipeline = self._pipeline
        index = action.stage % len(pipeline.meshes)
        mesh = pipeline.meshes[index]
        with pipeline.compute_stream.activate(), mesh.activate():
            borrows: list[Borrow] = []
            given = self._receive(action, borrows)
            # The stream of movements waits here for the compute stream, which has had time meanwhile.
            _end(self._received[index])
            self._received[index] = borrows
            if action.kind == "forward":
                to, results = action.stage + 1, self._forward(action, given)
            else:
                to, results = action.stage - 1, self._backward(action, given)
            _end(self._sent[index])
            if results is not None:
                self._send(results, action._replace(stage=to), index)

    def end(self) -> None:
        """Ends all borrows."""
        with ExitStack() as ends:
            for borrows in (*self._sent, *self._received):
                ends.callback(_end, borrows)
        self._moved.clear()
        self._kept.clear()

    def _forward(self, action: Action, given: list[Any]) -> list[Any] | None:
        """The results for the next stage; None from the last one.

        A stage computes with copies of what it is given: it may begin with an operation in place, which autograd allows on no leaf.
        """
        pipeline, stage = self._pipeline, action.stage
        target = None if self._targets is None else self._targets[action.microbatch]
        is_last = stage == self._last
        inputs = list(self._inputs[action.microbatch]) if stage == 0 else [value.clone() for value in given]
        extra = [target] if is_last and target is not None and pipeline.loss_fn is None else []
        output = pipeline.stages[stage](*inputs, *extra)
        if is_last and target is not None and pipeline.loss_fn is not None:
            output = pipeline.loss_fn(output, target)
        outputs = list(_as_tuple(output))
        for value in outputs:
            if not is_mesh_tensor(value):
                raise TypeError(f"stage {stage} returned {type(value).__name__}, and not a tensor or a tuple of tensors of its mesh")
        if target is not None:
            if is_last and (len(outputs) != 1 or outputs[0].numel() != 1):
                shapes = ", ".join(str(list(value.shape)) for value in outputs)
                raise ValueError(f"the loss of a microbatch is one number, and the last stage returned {shapes}")
            self._kept[stage, action.microbatch] = _Kept(given, outputs)
        if not is_last:
            return outputs
        detached = [value.detach() for value in outputs]
        self.results[action.microbatch] = tuple(detached) if isinstance(output, tuple) and target is None else detached[0]
        return None

    def _backward(self, action: Action, given: list[Any]) -> list[Any] | None:
        """The gradients for the stage before; None from the first one."""
        kept = self._kept.pop((action.stage, action.microbatch))
        gradients = given
        if action.stage == self._last:
            gradients = [torch.full_like(kept.outputs[0], self._weight)]
        pairs = [(o, g) for o, g in zip(kept.outputs, gradients, strict=True) if o.requires_grad and g is not None]
        if pairs:
            torch.autograd.backward([o for o, _ in pairs], [g for _, g in pairs])
        if action.stage == 0:
            return None
        found = [value.grad for value in kept.inputs]
        for value in kept.inputs:
            value.grad = None
        return found

    def _send(self, results: list[Any], to: Action, index: int) -> None:
        """Moves results to the mesh of another stage. None is sent as it is."""
        pipeline = self._pipeline
        mesh = pipeline.meshes[to.stage % len(pipeline.meshes)]
        stays = mesh == pipeline.meshes[index]
        moved: list[Any] = []
        for value in results:
            tensor = None if value is None else value.detach()
            if tensor is not None and not stays:
                stream = pipeline.p2p_stream if to.kind == "forward" else pipeline.gradient_stream
                borrowed, borrow = stream.borrow(tensor)
                self._sent[index].append(borrow)
                tensor = borrowed.to_mesh(mesh)
            moved.append(tensor)
        self._moved[to] = _Moved(moved, [value is not None and value.requires_grad for value in results], not stays)

    def _receive(self, action: Action, borrows: list[Borrow]) -> list[Any]:
        """What the stage beside has sent: inputs of a forward, gradients of the outputs for a backward."""
        moved = self._moved.pop(action, None)
        if moved is None:
            return []
        found: list[Any] = []
        for tensor, requires_grad in zip(moved.tensors, moved.requires_grad, strict=True):
            value = tensor
            if tensor is not None and moved.on_the_way:
                borrowed, borrow = self._pipeline.compute_stream.borrow(tensor)
                borrows.append(borrow)
                # Gradients of parameters may be views of received tensors, and outlive every borrow.
                value = borrowed.detach() if action.kind == "forward" else borrowed.clone()
            found.append(value.requires_grad_() if requires_grad else value)
        return found


def _end(borrows: list[Borrow]) -> None:
    while borrows:  # polls: no, each pass ends one
        borrows.pop().drop()


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)  # pyright: ignore[reportUnknownVariableType]
