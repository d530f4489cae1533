"""The order in which each mesh of a pipeline runs the forwards and backwards of its stages. Pure data, without torch.

Stage `s` of `S` is on mesh `s % M` of `M`. The forward of a stage needs the forward of the stage before it. The backward of a stage needs
its own forward and the backward of the stage after it. All are of the same microbatch.

| name | order on a mesh | microbatches whose activations a stage keeps at once |
|---|---|---|
| `gpipe` | all forwards, then all backwards | all |
| `1f1b` | some forwards, then a forward and a backward in turn; one stage for each mesh | `S - s` |
| `interleaved` | the same with several stages for each mesh, in rounds of as many microbatches as meshes | at most `2 * M` |
| `dora-dfs` | depth first: what is nearest to the end of its microbatch; any number of stages and microbatches | `S - s` |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

# The time of a backward in units of a forward, for an order that is made by simulation.
_BACKWARD = 2


class Action(NamedTuple):
    """The forward or the backward of one stage for one microbatch."""

    kind: Literal["forward", "backward"]
    stage: int
    microbatch: int

    def needs(self, stages: int) -> tuple[Action, ...]:
        """The actions whose results it uses."""
        if self.kind == "forward":
            return (self._replace(stage=self.stage - 1),) if self.stage else ()
        own = self._replace(kind="forward")
        return (own, self._replace(stage=self.stage + 1)) if self.stage + 1 < stages else (own,)


Order = list[list[Action]]


def schedule(name: str, meshes: int, stages: int, microbatches: int) -> Order:
    """The actions of each mesh in their order.

    `ValueError` for an unknown name, and for numbers that do not fit: there are as many stages on each mesh, in `1f1b` one, and in
    `interleaved` the number of microbatches is a multiple of that of meshes if there are several stages on a mesh.
    """
    made = _SCHEDULES.get(name.lower())
    if made is None:
        raise ValueError(f"there is no schedule {name!r}, only {', '.join(map(repr, _SCHEDULES))}")
    if meshes < 1 or stages < 1 or stages % meshes:
        raise ValueError(f"{stages} stages do not fit {meshes} meshes: each mesh has the same number of stages, at least one")
    if microbatches < 1:
        raise ValueError(f"a schedule is for at least one microbatch, not for {microbatches}")
    return made(meshes, stages, microbatches)


def in_one_order(order: Order, stages: int) -> list[Action]:
    """The actions of all meshes in an order in which one controller issues them: the order of each mesh stays, and inputs come first.

    The actions go by the time at which they would begin. `ValueError` for an order in which meshes wait for each other forever.
    """
    found: list[Action] = []
    ends: dict[Action, int] = {}
    free = [0] * len(order)
    at = [0] * len(order)
    total = sum(map(len, order))
    while len(found) < total:
        best: tuple[int, int] | None = None
        for mesh, actions in enumerate(order):
            if at[mesh] == len(actions):
                continue
            needed = actions[at[mesh]].needs(stages)
            if all(action in ends for action in needed):
                start = max([free[mesh], *(ends[action] for action in needed)])
                best = min(best, (start, mesh)) if best is not None else (start, mesh)
        if best is None:
            waiting = [actions[at[mesh]] for mesh, actions in enumerate(order) if at[mesh] < len(actions)]
            raise ValueError(f"the meshes wait for each other: {', '.join(map(str, waiting))}")
        start, mesh = best
        action = order[mesh][at[mesh]]
        at[mesh] += 1
        free[mesh] = ends[action] = start + _time(action)
        found.append(action)
    return found


def peaks(order: Order, stages: int) -> list[int]:
    """For each stage, the most microbatches of which the forward was run and the backward not yet."""
    live = [0] * stages
    most = [0] * stages
    for actions in order:
        for action in actions:
            live[action.stage] += 1 if action.kind == "forward" else -1
            most[action.stage] = max(most[action.stage], live[action.stage])
    return most


def length(order: Order, stages: int) -> int:
    """The time from the first action to the last, where a forward takes 1, a backward 2, and the movement of data nothing."""
    ends: dict[Action, int] = {}
    free: dict[int, int] = {}
    for action in in_one_order(order, stages):
        mesh = action.stage % len(order)
        ends[action] = max([free.get(mesh, 0), *(ends[a] for a in action.needs(stages))]) + _time(action)
        free[mesh] = ends[action]
    return max(ends.values())


def _time(action: Action) -> int:
    return 1 if action.kind == "forward" else _BACKWARD


def _gpipe(meshes: int, stages: int, microbatches: int) -> Order:
    order: Order = []
    for mesh in range(meshes):
        own = range(mesh, stages, meshes)
        forwards = [Action("forward", stage, i) for stage in own for i in range(microbatches)]
        backwards = [Action("backward", stage, i) for stage in reversed(own) for i in range(microbatches)]
        order.append(forwards + backwards)
    return order


def _one_forward_one_backward(meshes: int, stages: int, microbatches: int) -> Order:
    if stages != meshes:
        raise ValueError(f"{stages} stages do not fit {meshes} meshes: '1f1b' has one stage for each mesh; 'interleaved' has several")
    order: Order = []
    for stage in range(stages):
        forwards = [Action("forward", stage, i) for i in range(microbatches)]
        backwards = [Action("backward", stage, i) for i in range(microbatches)]
        order.append(_in_turn(forwards, backwards, stages - stage - 1))
    return order


def _interleaved(meshes: int, stages: int, microbatches: int) -> Order:
    if stages == meshes:
        return _one_forward_one_backward(meshes, stages, microbatches)
    if microbatches % meshes:
        raise ValueError(
            f"{microbatches} microbatches do not fit {meshes} meshes: 'interleaved' needs a multiple of the number of meshes; "
            "'dora-dfs' has any number"
        )
    order: Order = []
    rounds = [range(first, first + meshes) for first in range(0, microbatches, meshes)]
    for mesh in range(meshes):
        own = range(mesh, stages, meshes)
        forwards = [Action("forward", stage, i) for part in rounds for stage in own for i in part]
        backwards = [Action("backward", stage, i) for part in rounds for stage in reversed(own) for i in part]
        # The forwards before the first backward: the first round through all own stages but the last, and the route to the end and back.
        order.append(_in_turn(forwards, backwards, (len(own) - 1) * meshes + 2 * (meshes - mesh - 1)))
    return order


def _in_turn(forwards: Sequence[Action], backwards: Sequence[Action], ahead: int) -> list[Action]:
    """Some forwards first, then one forward and one backward in turn, then the other backwards."""
    ahead = min(ahead, len(forwards))
    found = list(forwards[:ahead])
    for forward, backward in zip(forwards[ahead:], backwards, strict=False):
        found += (forward, backward)
    return found + list(backwards[len(forwards) - ahead :])


def _depth_first(meshes: int, stages: int, microbatches: int) -> Order:
    """Made by simulation: a mesh that is free begins a backward if it can, else the forward of the latest stage that it can.

    The forward of stage `s` begins at most `S - s` microbatches ahead of its backward. Some action can always begin: the last stage that
    is not empty has its backwards ready, or a microbatch that the stage behind it has room for.
    """
    order: Order = [[] for _ in range(meshes)]
    # By stage: the number of begun forwards and backwards, and the end of each.
    begun = {kind: [0] * stages for kind in ("forward", "backward")}
    ends: dict[Action, int] = {}
    free = [0] * meshes
    now = 0
    total = 2 * stages * microbatches

    def can_begin(action: Action) -> bool:
        if action.microbatch == microbatches:
            return False
        if action.kind == "forward" and action.microbatch - begun["backward"][action.stage] >= stages - action.stage:
            return False
        return all(ends.get(needed, now + 1) <= now for needed in action.needs(stages))

    def candidates(mesh: int) -> Iterable[Action]:
        own = range(mesh, stages, meshes)
        for stage in own:
            yield Action("backward", stage, begun["backward"][stage])
        for stage in reversed(own):
            yield Action("forward", stage, begun["forward"][stage])

    while len(ends) < total:
        for mesh in range(meshes):
            action = next(filter(can_begin, candidates(mesh)), None) if free[mesh] <= now else None
            if action is not None:
                order[mesh].append(action)
                begun[action.kind][action.stage] += 1
                free[mesh] = ends[action] = now + _time(action)
        now += 1
    return order


_SCHEDULES: dict[str, Callable[[int, int, int], Order]] = {
    "dora-dfs": _depth_first,
    "gpipe": _gpipe,
    "1f1b": _one_forward_one_backward,
    "interleaved": _interleaved,
}
SCHEDULES = tuple(_SCHEDULES)
