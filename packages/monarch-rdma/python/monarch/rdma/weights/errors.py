"""The exceptions of weights."""

from __future__ import annotations

from monarch.rdma.errors import RDMAError


class LayoutError(RDMAError, ValueError):
    """The boxes of the sources do not cover those of the target, or a tensor differs in shape or dtype; `tensor` is its name."""

    __module__ = "monarch.rdma.weights"
    _default_code = "weights_layout"
    tensor: str = ""


class NotPublishedError(RDMAError, LookupError):
    """A process of the mesh publishes no weights of this name."""

    __module__ = "monarch.rdma.weights"
    _default_code = "weights_not_published"
