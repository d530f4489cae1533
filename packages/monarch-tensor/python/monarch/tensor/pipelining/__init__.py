"""Training of a model that is cut into stages, each on a mesh of its own.

The name is loaded on first use: `schedules` needs no torch.
"""

from __future__ import annotations

from monarch.extension.facade import lazy_names as _lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch.tensor.pipelining.pipeline import PipelineParallelism as PipelineParallelism

if not TYPE_CHECKING:  # type checkers go by the import above
    __all__, __getattr__, __dir__ = _lazy_names(__name__, {"pipeline": ("PipelineParallelism",)})
