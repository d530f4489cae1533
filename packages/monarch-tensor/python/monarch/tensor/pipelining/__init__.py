"""Training of a model that is cut into stages, each on a mesh of its own.

The name is loaded on first use: `schedules` needs no torch.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch.tensor.pipelining.pipeline import PipelineParallelism as PipelineParallelism

__all__ = ["PipelineParallelism"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'monarch.tensor.pipelining' has no attribute {name!r}")
    from monarch.tensor.pipelining.pipeline import PipelineParallelism

    return PipelineParallelism
