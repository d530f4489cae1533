"""`PortForwarder`: ports of some procs' machines as ports of others'."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from monarch.actor import Actor, Point, endpoint
from monarch.job._files import audit
from monarch.job._host.tunnel import Dialer, Listener, parse_address

if TYPE_CHECKING:
    from collections.abc import Callable

    from monarch.actor import ProcMesh


class PortForwarder(Actor):
    """Forwards TCP connections between two meshes as long as it lives; each call of `forward` adds to what it does."""

    def __init__(self) -> None:
        self._addresses: list[str] = []

    @endpoint
    async def forward(
        self,
        dst_proc_mesh: ProcMesh,
        dst_port: int | Callable[[Point], int],
        src_proc_mesh: ProcMesh,
        src_address: str | Callable[[Point], str],
    ) -> None:
        """Listens on `src_address` beside each proc of `src_proc_mesh`, and connects what comes in with `dst_port` of the machine of the
        proc of the same rank of `dst_proc_mesh`. Done when all listen.

        An address is `port`, `:port`, `host:port` or `[host]:port`; without a host only the machine itself can connect, with port 0 any
        free one is taken. A callable gets the point. Procs of one machine may share an address that is given as text: the kernel gives
        each connection to one of them. `ValueError` if the meshes differ in labels or sizes, `OSError` if an address cannot be had.
        """
        ranks = len(dst_proc_mesh)
        if dst_proc_mesh.extent != src_proc_mesh.extent:
            shapes = f"dst_proc_mesh {dst_proc_mesh.extent} and src_proc_mesh {src_proc_mesh.extent}"
            raise ValueError(f"{shapes} must have the same shape: equal labels and sizes")
        is_shared = isinstance(src_address, str) and ranks > 1
        points = [Point(rank, src_proc_mesh.extent) for rank in range(ranks)]
        addresses = [src_address(point) if callable(src_address) else src_address for point in points]
        targets = [Point(rank, dst_proc_mesh.extent) for rank in range(ranks)]
        ports = [dst_port(point) if callable(dst_port) else dst_port for point in targets]
        for address in addresses:
            parse_address(address)
        for port in ports:
            if not isinstance(port, int) or not 0 < port < 65536:  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ValueError(f"invalid port {port!r}")
        listeners: Any = src_proc_mesh.spawn("listener", Listener)
        dialers: Any = dst_proc_mesh.spawn("dialer", Dialer)
        pairs = [(_one(listeners, points[rank]), _one(dialers, targets[rank])) for rank in range(ranks)]
        calls = [
            listener.listen.call_one(address, listener, dialer, port, is_shared)
            for (listener, dialer), address, port in zip(pairs, addresses, ports, strict=True)
        ]
        try:
            found = [await call for call in calls]
            self._addresses += found
            for address, port in zip(found, ports, strict=True):
                audit.record("port-forward", f"port {port} of {dst_proc_mesh}", "begun", listens=address)
        except BaseException:
            # Both meshes stop.
            await asyncio.gather(*(mesh.stop().as_asyncio() for mesh in (listeners, dialers)), return_exceptions=True)
            raise

    @endpoint
    async def addresses(self) -> list[str]:
        """Where it listens, in the order of the calls and of the ranks."""
        return self._addresses


def _one(mesh: Any, point: Point) -> Any:
    return mesh.slice(**point) if point else mesh
