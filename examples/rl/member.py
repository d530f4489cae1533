"""A rank of a process group of PyTorch whose ranks are the actors of one mesh: the base of trainers and of generators.

The group ends with its processes. Actors that replace them make another group, with a store on another port.
"""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from monarch.actor import Actor, current_rank, current_size, endpoint

# Only for a rank that is silent: the end of a process closes its connections.
TIMEOUT = timedelta(seconds=60)


class Member(Actor):
    def __init__(self) -> None:
        self.rank = current_rank().rank
        self.store: dist.TCPStore | None = None

    @endpoint
    def listen(self) -> int:
        """On rank 0: serves the store where the ranks meet; returns its port."""
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        return self.store.port

    def join(self, port: int) -> DeviceMesh:
        """Waits until all ranks have joined."""
        ranks = current_size()["gpus"]
        store = self.store or dist.TCPStore("127.0.0.1", port, is_master=False, timeout=TIMEOUT)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=ranks, timeout=TIMEOUT)
        return init_device_mesh("cpu", (ranks,))
