"""A rank of a replica group: data-parallel with the ranks of its group, and averaging with the ranks of its number in the other groups.

Within its group it uses the default process group of torch. Between groups there is a gloo group for each quorum. An operation between
groups ends when it is complete, when gloo notices a closed connection, or when the controller reports the death of a group. Gloo itself
cannot be interrupted, so an abandoned operation ends in the background.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import socket
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

sys.path.append(str(Path(__file__).resolve().parents[1] / "train"))  # the model of all examples with torch

from char_model import CharModel, batch

from monarch.actor import Actor, concurrent_endpoint, current_rank, current_size, endpoint

BATCH = 4
T = TypeVar("T")
# The address and the port of a store.
Place = tuple[str, int]
# Only for a peer that is silent while no death is reported.
TIMEOUT = timedelta(seconds=60)


class GroupLost(RuntimeError):
    """Another group has died: the step is not done."""


class Trainer(Actor):
    def __init__(self, group: int, is_alone: bool) -> None:
        self.group = group
        # Where other ranks reach this one: on this machine only, or from other hosts.
        self.address = "127.0.0.1" if is_alone else socket.gethostbyname(socket.gethostname())
        self.rank, self.ranks = current_rank().rank, current_size()["gpus"]
        self.stores: dict[int, dist.TCPStore] = {}
        self.between: dist.ProcessGroupGloo | None = None
        self.lost = asyncio.Event()  # a group of the quorum has died
        self.step = 0

    @endpoint
    async def serve(self, number: int) -> Place:
        """Serves a store where ranks meet; returns its place. Number 0 is that of the group itself."""
        self.stores = {number: dist.TCPStore(self.address, 0, is_master=True, wait_for_workers=False)}
        return self.address, self.stores[number].port

    def store(self, number: int, place: Place) -> dist.TCPStore:
        return self.stores.get(number) or dist.TCPStore(*place, is_master=False, timeout=TIMEOUT)

    @endpoint
    async def start(self, place: Place) -> None:
        await asyncio.to_thread(self.build, place)

    def build(self, place: Place) -> None:
        dist.init_process_group("gloo", store=self.store(0, place), rank=self.rank, world_size=self.ranks, timeout=TIMEOUT)
        torch.manual_seed(0)
        self.model = DistributedDataParallel(CharModel())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)

    @concurrent_endpoint
    async def cut(self) -> None:
        """A group has died: what this rank does with other groups ends now."""
        self.lost.set()

    async def unless_cut(self, function: Callable[..., T], *arguments: object) -> T:
        """The result of an operation between groups; `GroupLost` if a group dies meanwhile."""
        work, cut = asyncio.create_task(asyncio.to_thread(function, *arguments)), asyncio.create_task(self.lost.wait())
        await asyncio.wait((work, cut), return_when=asyncio.FIRST_COMPLETED)
        cut.cancel()
        if not work.done():
            work.add_done_callback(asyncio.Task.exception)  # its outcome does not matter
            raise GroupLost("another group was lost")
        return work.result()

    @concurrent_endpoint
    async def connect(self, number: int, group: int, groups: int, place: Place) -> None:
        """Leaves the last quorum, and connects to the ranks of the same number of this one."""
        self.lost.clear()
        self.between = None
        self.between = await self.unless_cut(lambda: dist.ProcessGroupGloo(self.store(number, place), group, groups, TIMEOUT))

    @concurrent_endpoint
    async def average(self) -> float:
        """Gradients of the next step, the mean of all groups; the loss of this rank. `apply` completes the step."""
        loss, flat = await asyncio.to_thread(self.gradients)
        between = self.between
        assert between is not None
        await self.unless_cut(lambda: between.allreduce([flat]).wait())
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        for gradient, mean in zip(gradients, flat.div_(between.size()).split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))
        return loss

    def gradients(self) -> tuple[float, Tensor]:
        loss = self.model(*batch(BATCH, seed=(self.step * 100 + self.group) * self.ranks + self.rank))
        self.optimizer.zero_grad()
        loss.backward()
        return loss.item(), torch.cat([parameter.grad.flatten() for parameter in self.model.parameters() if parameter.grad is not None])

    @endpoint
    async def apply(self) -> int:
        self.optimizer.step()
        self.step += 1
        return self.step

    @endpoint
    async def at(self) -> int:
        return self.step

    @endpoint
    async def die(self, with_host: bool) -> None:
        """Kills this process; or all of its host, the worker first. It is the parent of the zygote, which is that of the processes."""
        zygote = os.getppid()
        worker = int(Path(f"/proc/{zygote}/stat").read_text().rpartition(")")[2].split()[1])
        others = [int(pid) for pid in Path(f"/proc/{zygote}/task/{zygote}/children").read_text().split() if int(pid) != os.getpid()]
        for pid in (*((worker, zygote, *others) if with_host else ()), os.getpid()):
            os.kill(pid, signal.SIGKILL)

    @endpoint
    async def state(self) -> tuple[int, dict[str, Tensor], dict[str, object]]:
        return self.step, self.model.module.state_dict(), self.optimizer.state_dict()

    @endpoint
    async def catch_up(self, other: Trainer) -> int:
        """Takes over the state of the same rank of another group, from memory to memory."""
        self.step, weights, moments = await other.slice(gpus=self.rank).state.call_one()
        self.model.module.load_state_dict(weights)
        self.optimizer.load_state_dict(moments)
        return self.step

    @endpoint
    async def digest(self) -> str:
        content = b"".join(parameter.detach().numpy().tobytes() for parameter in self.model.parameters())
        return hashlib.sha256(content).hexdigest()[:16]
