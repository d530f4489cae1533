"""Attaching the hosts whose agents run at given addresses."""

from __future__ import annotations

from monarch._core.config.address import ChannelAddr
from monarch._core.hosts.attachment import Attachment, agent_uid, where
from monarch._core.hosts.host_mesh import HostMesh
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

    An address is a string such as `tcp://host:22222` or a `Future` of one. Returns at once; `initialized` is done when all have joined and
    raises `AttachError` (`.hosts`: address to reason) if one has not within `mesh_attach_config_timeout`. `secret` (bytes, or the path of a
    file that only its owner may read), `private_key` with `ca` (PEM, or paths), or `insecure=True` are the credentials by which both sides
    authenticate; `ValueError` if an address needs one of them. Errors name a host by `name` and rank while its address is unknown.
    """
    process = current_process()
    if not process.is_client or process.universe is not None:
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
    mesh = HostMesh(attachment.ids, Shape(("hosts",), Slice.new_row_major((len(workers),))), True)
    mesh._attachment = attachment
    return mesh
