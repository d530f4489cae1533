"""The same weights put into TorchStore and got from it, for `bench/weights.py`.

The trainers have their rows as a `DTensor` over a mesh of their own, and the generators their boxes over another one. Each trainer has a
storage volume. The transport is what the store finds: version 0.1.2 sends messages where no RDMA device is usable, later ones share memory
on one host. A later one needs `portpicker`, and monarch-compat on the path of modules, too.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from typing import TYPE_CHECKING, Any

# The store writes a line in each process where this is missing.
os.environ.setdefault("HYPERACTOR_CODEC_MAX_FRAME_LENGTH", "910737418240")

import torch
import torch.distributed as dist
import torchstore
import torchstore.api
import torchstore.controller
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from monarch.actor import EndpointProperty, endpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from monarch.rdma.weights import Box

    State = Mapping[str, tuple[NDArray[np.float32], Box]]

_KEY = "policy"


class Controller(torchstore.controller.Controller):
    """The controller of TorchStore 0.1.2 has async and sync endpoints, which Monarch refuses. Here all are async."""


def _as_async(method: Callable[..., Any]) -> EndpointProperty:
    async def call(self: Controller, *args: Any, **kwargs: Any) -> Any:
        return method(self, *args, **kwargs)

    return endpoint(call)


for _name, _value in vars(torchstore.controller.Controller).items():
    if isinstance(_value, EndpointProperty) and not inspect.iscoroutinefunction(_value._method):
        setattr(Controller, _name, _as_async(_value._method))
torchstore.api.Controller = Controller


def start(volumes: int) -> None:
    asyncio.run(torchstore.initialize(num_storage_volumes=volumes, strategy=torchstore.LocalRankStrategy()))


class Store:
    """The tensors of this rank, of `count` trainers or generators. They share the memory of `state`."""

    def __init__(self, file: str, count: int, rank: int, state: State) -> None:
        os.environ["LOCAL_RANK"] = str(rank)  # the strategy finds the volume by it
        dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=count)
        mesh = init_device_mesh("cpu", (count,))
        self._tensors: dict[str, DTensor] = {}
        for name, (array, box) in state.items():
            parted = [i for i, size in enumerate(box.shape) if size < box.global_shape[i]]
            placement = Shard(parted[0]) if parted else Replicate()
            self._tensors[name] = DTensor.from_local(torch.from_numpy(array), mesh, [placement], run_check=False)

    def put(self) -> None:
        asyncio.run(torchstore.put_state_dict(self._tensors, _KEY))

    def get(self) -> None:
        """The tensors are filled in place."""
        asyncio.run(torchstore.get_state_dict(_KEY, self._tensors))
