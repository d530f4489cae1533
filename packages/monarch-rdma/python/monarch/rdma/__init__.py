"""Memory of other processes, read and written from one side: the public names. Each is loaded on first use."""

from __future__ import annotations

from monarch.extension.facade import lazy_names as _lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch.rdma._buffers.action import RDMAAction as RDMAAction
    from monarch.rdma._buffers.buffer import RDMABuffer as RDMABuffer
    from monarch.rdma._buffers.buffer_set import RDMABufferSet as RDMABufferSet
    from monarch.rdma._buffers.plan import RDMAPlan as RDMAPlan
    from monarch.rdma._machine.backend import get_rdma_backend as get_rdma_backend
    from monarch.rdma._machine.backend import is_ibverbs_available as is_ibverbs_available
    from monarch.rdma._machine.backend import is_rdma_available as is_rdma_available
    from monarch.rdma._machine.probe import DeviceReport as DeviceReport
    from monarch.rdma._machine.probe import probe as probe
    from monarch.rdma._process.allocation import allocate as allocate
    from monarch.rdma.errors import RDMAAccessError as RDMAAccessError
    from monarch.rdma.errors import RDMAError as RDMAError
    from monarch.rdma.errors import RdmaInitError as RdmaInitError
    from monarch.rdma.errors import RDMAPeerLostError as RDMAPeerLostError
    from monarch.rdma.errors import RDMAReadTransferWarning as RDMAReadTransferWarning
    from monarch.rdma.errors import RDMAReleasedError as RDMAReleasedError
    from monarch.rdma.errors import RDMATcpFallbackWarning as RDMATcpFallbackWarning
    from monarch.rdma.errors import RDMATimeoutError as RDMATimeoutError
    from monarch.rdma.errors import RDMATransferError as RDMATransferError
    from monarch.rdma.errors import RDMAUnsupportedError as RDMAUnsupportedError
    from monarch.rdma.errors import RDMAWriteTransferWarning as RDMAWriteTransferWarning

# Where each name is implemented: generated from the imports above by `python -m tools.generate_docs --write`.
_HOMES = {
    "_buffers.action": ("RDMAAction",),
    "_buffers.buffer": ("RDMABuffer",),
    "_buffers.buffer_set": ("RDMABufferSet",),
    "_buffers.plan": ("RDMAPlan",),
    "_machine.backend": ("get_rdma_backend", "is_ibverbs_available", "is_rdma_available"),
    "_machine.probe": ("DeviceReport", "probe"),
    "_process.allocation": ("allocate",),
    "errors": (
        "RDMAAccessError",
        "RDMAError",
        "RDMAPeerLostError",
        "RDMAReadTransferWarning",
        "RDMAReleasedError",
        "RDMATcpFallbackWarning",
        "RDMATimeoutError",
        "RDMATransferError",
        "RDMAUnsupportedError",
        "RDMAWriteTransferWarning",
        "RdmaInitError",
    ),
}
# End of the generated table.

if not TYPE_CHECKING:  # type checkers go by the imports above
    __all__, __getattr__, __dir__ = _lazy_names(__name__, _HOMES)
