"""The scheduler `monarch` of TorchX, which TorchX finds by the entry point `torchx.schedulers`."""

from torchx_monarch.scheduler import MonarchScheduler as MonarchScheduler
from torchx_monarch.scheduler import create_scheduler as create_scheduler

__all__ = ["MonarchScheduler", "create_scheduler"]
