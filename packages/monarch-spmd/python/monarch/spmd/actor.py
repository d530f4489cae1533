"""Programs of torchrun in the processes of a mesh: an actor that sets the variables of its rank and runs them."""

from __future__ import annotations

import os

from monarch.actor import Actor, Point, ProcMesh, current_rank, endpoint
from monarch.spmd.address import AddrType, ReservedPort, host_address
from monarch.spmd.environment import RankPlace, variables
from monarch.spmd.errors import SPMDError
from monarch.spmd.program import run_program

_NAME = "_SPMDActor"


def place_of(point: Point) -> RankPlace:
    """The place of a rank of a mesh, whose last dimension counts the ranks of a host."""
    sizes = point.extent.sizes
    return RankPlace(point.rank, point.extent.nelements, sizes[-1] if sizes else 1)


class SPMDActor(Actor):
    """One rank of a program. The last dimension of the mesh counts the ranks of a host.

    ranks = hosts.spawn_procs({"gpus": 8}).spawn("_SPMDActor", SPMDActor)
    address, port = ranks.slice(hosts=0, gpus=0).get_host_port.call_one(None).get()
    ranks.main.call(address, port, ["train.py", "--lr", "0.1"]).get()
    """

    def __init__(self) -> None:
        self._place = place_of(current_rank())
        self._reserved: ReservedPort | None = None

    @endpoint
    def get_host_port(self, use_ipaddr: AddrType | None) -> tuple[str, int]:
        """The name of this host, or an address of the kind, and a free port, which stays bound until the program starts."""
        address = host_address(use_ipaddr)
        self._release()
        self._reserved = ReservedPort()
        return address, self._reserved.number

    @endpoint
    def setup_env(self, master_addr: str, master_port: int) -> None:
        """Sets the variables of this rank in `os.environ` of its process."""
        self._set(master_addr, master_port)

    @endpoint
    def main(self, master_addr: str, master_port: int, script_args: list[str]) -> bool:
        """Runs `[script.py, arguments...]` or `["-m", module, arguments...]` as `__main__` of this process. True, or what it raises.

        `ValueError` for an empty list, `SPMDError` for an exit with another code than 0.
        """
        self._set(master_addr, master_port)
        self._release()
        run_program(script_args)
        return True

    def _set(self, address: str, port: int) -> None:
        os.environ.update(variables(self._place, address, port, environ=os.environ))

    def _release(self) -> None:
        reserved, self._reserved = self._reserved, None
        if reserved is not None:
            reserved.close()


def _first(ranks: SPMDActor) -> SPMDActor:
    return ranks.slice(**dict.fromkeys(ranks.extent.labels, 0))


def _checked(proc_mesh: ProcMesh, master_addr: str | None, master_port: int | None) -> None:
    if (master_addr is None) != (master_port is None):
        given, other = ("master_addr", "master_port") if master_port is None else ("master_port", "master_addr")
        raise ValueError(f"{given} without {other}: give both, or none for an address and a port of rank 0")
    if master_port is not None and not 0 <= master_port <= 65535:
        raise ValueError(f"master_port={master_port}: expected a number from 0 to 65535")
    if not proc_mesh.extent.nelements:
        raise SPMDError("the mesh has no ranks")


def setup_torch_elastic_env(
    proc_mesh: ProcMesh, master_addr: str | None = None, master_port: int | None = None, use_ipaddr: AddrType | None = None
) -> None:
    """Sets the variables of torchrun in the processes of a mesh, whose last dimension counts the ranks of a host.

    The ranks meet at the given address and port, or at a free port of rank 0: at the name of its host, or at an address of the kind
    `use_ipaddr`. `ValueError` where one of address and port is given without the other.
    """
    _checked(proc_mesh, master_addr, master_port)
    ranks = proc_mesh.spawn(_NAME, SPMDActor)
    if master_addr is None or master_port is None:
        master_addr, master_port = _first(ranks).get_host_port.call_one(use_ipaddr).get()
    ranks.setup_env.call(master_addr, master_port).get()


async def setup_torch_elastic_env_async(
    proc_mesh: ProcMesh, master_addr: str | None = None, master_port: int | None = None, use_ipaddr: AddrType | None = None
) -> None:
    """The same, awaited."""
    _checked(proc_mesh, master_addr, master_port)
    ranks = proc_mesh.spawn(_NAME, SPMDActor)
    if master_addr is None or master_port is None:
        master_addr, master_port = await _first(ranks).get_host_port.call_one(use_ipaddr)
    await ranks.setup_env.call(master_addr, master_port)
