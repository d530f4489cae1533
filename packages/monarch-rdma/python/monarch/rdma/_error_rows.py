"""The errors of this wheel, by its entry point of the group `monarch.errors`. Most hints depend on the cause, and stand in the error."""

from __future__ import annotations

from monarch.extension import ErrorRow
from monarch.rdma.errors import (
    RDMAAccessError,
    RDMAError,
    RdmaInitError,
    RDMAPeerLostError,
    RDMAReleasedError,
    RDMATimeoutError,
    RDMATransferError,
    RDMAUnsupportedError,
)
from monarch.rdma.weights.errors import LayoutError, NotPublishedError

ROWS = (
    ErrorRow("rdma_failed", RDMAError, "anything below; the base of what `monarch.rdma` raises", "{what}"),
    ErrorRow("rdma_init", RdmaInitError, "nothing can carry the bytes, or a setting is malformed", "{what}"),
    ErrorRow("rdma_timeout", RDMATimeoutError, "time was up before all bytes had been moved", "{what}"),
    ErrorRow("rdma_released", RDMAReleasedError, "the buffer was dropped, or its owner's process has exited in good order", "{what}"),
    ErrorRow("rdma_peer_lost", RDMAPeerLostError, "the owner's process died", "{what}"),
    ErrorRow("rdma_access", RDMAAccessError, "the handle is read-only, restricted, or of another job", "{what}"),
    ErrorRow("rdma_transfer", RDMATransferError, "no path is left", "{what}"),
    ErrorRow("weights_layout", LayoutError, "the weights of a mesh do not make up those of a target", "{what}"),
    ErrorRow("weights_not_published", NotPublishedError, "a rank of the mesh publishes no weights of that name", "{what}"),
    ErrorRow("rdma_unsupported", RDMAUnsupportedError, "that memory, or those two processes, cannot do it", "{what}"),
)
