"""The same weights moved by collectives of PyTorch with gloo, for `bench/weights.py`.

Ranks of the group are those of the trainers, and then those of the generators. All copies of one tensor are in flight at the same time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from monarch.rdma.weights import Box

    State = Mapping[str, tuple[NDArray[np.float32], Box]]


class Gloo:
    """The group, of which this process is the trainer or generator of this rank. `rows` and `boxes` are the boxes of all of them."""

    def __init__(self, store: str, rows: Sequence[Mapping[str, Box]], boxes: Sequence[Mapping[str, Box]], rank: int, state: State) -> None:
        self._rows, self._boxes, self._rank = rows, boxes, rank
        count = len(rows) + len(boxes)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=count)
        generators = range(len(rows), count)
        self._trainers = dist.new_group(list(range(len(rows))))
        self._readers = [dist.new_group([trainer, *generators]) for trainer in range(len(rows))]
        self._tensors = {name: torch.from_numpy(array) for name, (array, _) in state.items()}
        self._is_trainer = rank < len(rows)
        # Memory that is used again in each round: whole tensors, as all generators receive them by a broadcast.
        has_whole = not self._is_trainer or not rank
        self._whole = {name: torch.empty(box.global_shape) for name, box in rows[0].items()} if has_whole else {}

    def broadcast(self) -> None:
        """Each trainer sends its rows to all generators, which take their boxes of the whole tensors."""
        for name, tensor in self._tensors.items():
            if self._is_trainer:
                dist.broadcast(tensor, src=self._rank, group=self._readers[self._rank])
                continue
            parts = self._parts(name)
            copies = [dist.broadcast(part, src=i, group=self._readers[i], async_op=True) for i, part in enumerate(parts)]
            for copy in copies:
                copy.wait()
            tensor.copy_(self._whole[name][_index(self._boxes[self._rank - len(self._rows)][name])])

    def gather_and_scatter(self) -> None:
        """The first trainer gathers each tensor, and scatters the boxes to the generators."""
        for name, tensor in self._tensors.items():
            if not self._is_trainer:
                dist.scatter(tensor, src=0, group=self._readers[0])
                continue
            dist.gather(tensor, self._parts(name) if not self._rank else None, dst=0, group=self._trainers)
            if not self._rank:
                pieces = [self._whole[name][_index(boxes[name])].contiguous() for boxes in self._boxes]
                own = torch.empty_like(pieces[0])
                dist.scatter(own, [own, *pieces], src=0, group=self._readers[0])

    def _parts(self, name: str) -> list[torch.Tensor]:
        return [self._whole[name][_index(rows[name])] for rows in self._rows]


def _index(box: Box) -> tuple[slice, ...]:
    return tuple(slice(low, low + size) for low, size in zip(box.offset, box.shape, strict=True))
