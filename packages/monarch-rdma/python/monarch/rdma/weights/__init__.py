"""Weights of one mesh in the tensors of another, whatever the layouts: the public names. Each is loaded on first use."""

from __future__ import annotations

from monarch.extension.facade import lazy_names as _lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch.rdma.weights.box import Box as Box
    from monarch.rdma.weights.errors import LayoutError as LayoutError
    from monarch.rdma.weights.errors import NotPublishedError as NotPublishedError
    from monarch.rdma.weights.source import Source as Source
    from monarch.rdma.weights.target import Target as Target
    from monarch.rdma.weights.weights import Weights as Weights

# Where each name is implemented: generated from the imports above by `python -m tools.generate_docs --write`.
_HOMES = {
    "box": ("Box",),
    "errors": ("LayoutError", "NotPublishedError"),
    "source": ("Source",),
    "target": ("Target",),
    "weights": ("Weights",),
}
# End of the generated table.

if not TYPE_CHECKING:  # type checkers go by the imports above
    __all__, __getattr__, __dir__ = _lazy_names(__name__, _HOMES)
