"""Memory that other processes of the host can map."""

from __future__ import annotations

import operator

from monarch.rdma._process.process import this_process
from monarch.rdma.errors import RdmaInitError


def allocate(nbytes: int, *, huge_pages: bool | None = None) -> memoryview:
    """Shared memory of `nbytes`, zero, as a writable view; freed with the last view and the last buffer of it.

    Others on this host copy from it without asking the kernel (`shm`), or map it (`RDMABuffer.map`). `huge_pages`: True asks for pages of
    2 MiB, which an administrator must have set aside, False for none, None leaves it to the system.

    `ValueError` unless positive, `RdmaInitError` where there are no such pages, `MemoryError` where there is no memory.

        memory = allocate(1 << 20)
        memory[:5] = b"hello"
        buffer = RDMABuffer(memory)
    """
    nbytes = operator.index(nbytes)
    if nbytes <= 0:
        raise ValueError(f"expected a positive number of bytes, got {nbytes}")
    if nbytes >= 1 << 62:
        raise MemoryError(f"{nbytes:,} bytes are more than there can be")
    try:
        return memoryview(this_process().bulk.allocate(nbytes, huge_pages))  # pyright: ignore[reportArgumentType]
    except MemoryError as e:
        if huge_pages:
            raise RdmaInitError(
                f"allocation of {nbytes:,} bytes of huge pages: {e}",
                hint="set some aside: `sysctl vm.nr_hugepages=N`, of 2 MiB each; or leave huge_pages out",
            ) from None
        raise
