"""TorchXJob: the roles of a TorchX application as meshes, on any scheduler that TorchX has.

Each replica runs a worker in the place of the role's command (`job.plan()` prints what is submitted); where each listens is published in
a workspace that client and replicas share. TorchX itself runs in a process of its own.
"""

from __future__ import annotations

from monarch.job.torchx.job import TorchXJob as TorchXJob

__all__ = ["TorchXJob"]
