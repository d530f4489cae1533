"""Attaching the hosts whose agents run at given addresses."""

from __future__ import annotations

from monarch._core.config.address import ChannelAddr
from monarch._core.hosts.attachment import Attachment, agent_uid, where
from monarch._core.hosts.host_mesh import HostMesh
from monarch._core.hosts.host_set import HostSet
from monarch._core.hosts.trust import Given
from monarch._core.process.current import current_process
from monarch._core.shape.shape import Shape
from monarch._core.shape.slice import Slice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


def attach_to_workers(
    *,
    private_key: bytes | str | None = None,
    ca: bytes | str | None = None,
    workers: Sequence[Any],
    name: str | None = None,
    secret: bytes | str | None = None,
    insecure: bool = False,
) -> HostMesh:
    """The hosts whose agents run at these addresses (`monarch worker`), as a mesh with one dimension `hosts`, in this order.

    Returns at once. Both sides authenticate each other by a secret, by certificates, or not at all on `ipc://` and with `insecure=True`.

    Args:
        private_key: PEM, or its path: the key of the client, with `ca`.
        ca: PEM, or its path: the authority of both sides' certificates.
        workers: addresses such as `tcp://host:22222`, or Futures of addresses.
        name: the name of the hosts in errors while their addresses are unknown.
        secret: bytes, or the path of a file that only its owner may read.
        insecure: True for no authentication.

    Returns:
        The hosts; `initialized` is done when all have joined.

    Raises:
        ValueError: `workers` is empty, or an address needs credentials that are missing.
        TypeError: a worker is neither an address nor a Future.
        RuntimeError: the caller is an actor, and not the client.
        AttachError: from `initialized`: a host did not join within `mesh_attach_config_timeout`; `hosts` has the reason by address.

    ```python
    import subprocess
    from pathlib import Path

    from monarch.actor import attach_to_workers

    address = f"ipc://{Path('worker.socket').resolve()}"
    worker = subprocess.Popen(["monarch", "worker", "--listen", address], stdout=subprocess.DEVNULL)
    hosts = attach_to_workers(workers=[address])
    hosts.initialized.get()
    assert hosts.sizes == {"hosts": 1}
    hosts.shutdown().get()  # the worker ends
    assert worker.wait() == 0
    ```
    """
    process = current_process()
    if not process.is_client or process.execution.world is not None:
        raise RuntimeError("attach_to_workers is for the client: an actor takes a host mesh as an argument")
    workers = list(workers)
    if not workers:
        raise ValueError("workers is empty: give the address of one host at least")
    given = Given(secret, private_key, ca, insecure)
    for worker in workers:
        if isinstance(worker, str):
            address = ChannelAddr.parse(worker)
            where(address)
            agent_uid(address)
            given.of(address)
        elif not callable(getattr(worker, "get", None)):
            raise TypeError(f"workers has {worker!r}: expected an address or a Future of one")
    attachment = Attachment(process, workers, given, name)
    attachment.begin()
    hosts = HostSet(attachment.ids, Shape(("hosts",), Slice.new_row_major((len(workers),))), True)
    hosts.attachment = attachment
    return HostMesh(hosts)
