"""The connections of a rank: quorums from the lighthouse, and the ranks of the same number in the other groups.

Within its group a rank uses the default process group of torch, as in any program of torchrun. Between groups there is a gloo group for
each quorum and local rank. An operation between groups may fail at any time, since groups come and go. Then the step is not done, the gloo
group is given up, and the next quorum has the remaining groups.
"""

from __future__ import annotations

import io
import json
import os
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

# Only for a peer that is silent: the end of a process closes its connections.
TIMEOUT = timedelta(seconds=30)


class Replicas:
    def __init__(self, group: int) -> None:
        self.group = group
        self.rank = dist.get_rank()
        host, port = os.environ["LIGHTHOUSE"], int(os.environ["LIGHTHOUSE_PORT"])
        self.store = dist.TCPStore(host, int(os.environ["LIGHTHOUSE_STORE_PORT"]), is_master=False, timeout=TIMEOUT)
        self.number = 0
        self.between: dist.ProcessGroupGloo | None = None
        self.quorum: dict[str, Any] = {}
        if self.rank == 0:
            self.lines = socket.create_connection((host, port)).makefile("rw")
            self.tell({"token": os.environ["LIGHTHOUSE_TOKEN"], "group": group})

    def tell(self, message: dict[str, Any]) -> None:
        self.lines.write(json.dumps(message) + "\n")
        self.lines.flush()

    def next_quorum(self, step: int) -> dict[str, Any]:
        """The quorum of this step, the same on all ranks of all groups. Blocks until all present groups request it."""
        found: list[Any] = [None]
        if self.rank == 0:
            self.tell({"step": step, "cut_off": bool(self.quorum) and self.between is None})
            found = [json.loads(self.lines.readline())]
        dist.broadcast_object_list(found)
        self.quorum = found[0]
        return self.quorum

    def connect(self) -> bool:
        """Connects to the groups of the quorum; False if that failed for a rank of this group."""
        if self.quorum["number"] == self.number:
            return True
        self.number = self.quorum["number"]
        groups = self.quorum["groups"]

        def build() -> None:
            store = dist.PrefixStore(f"{self.number}/{self.rank}", self.store)
            self.between = dist.ProcessGroupGloo(store, groups.index(self.group), len(groups), TIMEOUT)

        self.between = None
        return self._together(build)

    def catch_up(self, state: Callable[[], Any], load: Callable[[Any], None]) -> bool:
        """Groups that are behind copy the state of a current one, from memory to memory."""
        groups, source = self.quorum["groups"], self.quorum["source"]
        assert self.between is not None
        between, root = self.between, dist.BroadcastOptions()
        root.rootRank = groups.index(source)

        def copy() -> None:
            written = io.BytesIO()
            if self.group == source:
                torch.save(state(), written)
            size = torch.tensor([len(written.getvalue())])
            between.broadcast([size], root).wait()
            content = torch.frombuffer(bytearray(written.getvalue().ljust(int(size))), dtype=torch.uint8)
            between.broadcast([content], root).wait()
            if self.group in self.quorum["behind"]:
                load(torch.load(io.BytesIO(content.numpy().tobytes())))

        return self._together(copy)

    def average(self, tensors: list[torch.Tensor]) -> bool:
        """The mean of each tensor over the groups of the quorum, in place; False if a group was lost, and the step has to be repeated."""
        groups = self.quorum["groups"]
        assert self.between is not None
        between = self.between

        def reduce() -> None:
            flat = torch.cat([tensor.flatten() for tensor in tensors])
            between.allreduce([flat]).wait()
            for tensor, mean in zip(tensors, flat.div_(len(groups)).split([tensor.numel() for tensor in tensors]), strict=True):
                tensor.copy_(mean.view_as(tensor))

        return self._together(reduce)

    def _together(self, work: Callable[[], None]) -> bool:
        """Whether the work succeeded on all ranks of this group. If not, the connections are closed, so that other groups do not wait."""
        works = torch.ones(1)
        try:
            work()
        except RuntimeError:  # a group is gone
            works.zero_()
        dist.all_reduce(works, dist.ReduceOp.MIN)
        if not works.item():
            self.between = None
        return bool(works.item())
