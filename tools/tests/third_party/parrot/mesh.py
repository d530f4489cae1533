"""Methods of meshes, like those of monarch-tensor."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Literal, NoReturn

from monarch.actor import Port, ProcMesh, ValueMesh
from monarch.extension.mesh import EndpointCall, mesh_view, ranked_port


@contextmanager
def activate(procs: ProcMesh) -> Generator[str]:
    yield f"{procs.size()} procs are active"


def to_table(procs: ProcMesh) -> str:
    view = mesh_view(procs)
    return "\n".join(f"{view.name}[{rank}] {proc} on {host}" for rank, proc, host in zip(view.ranks, view.procs, view.hosts, strict=True))


def rref(call: EndpointCall) -> tuple[str, ValueMesh[Any]]:
    """Sends the call with every argument twice; `propagate` gives the place of the results."""
    doubled = tuple(argument + argument for argument in call.args)
    return call.propagate, call.endpoint.call(*doubled, **call.kwargs).get()


def rank_tensors(procs: ProcMesh) -> NoReturn:
    raise ArithmeticError(f"no ranks for {procs.size()} procs")


class Echoes:
    """Two ranks that `send` calls as it calls an endpoint."""

    def send_call(self, args: tuple[Any, ...], kwargs: dict[str, Any], port: Port[str] | None, selection: Literal["all", "choose"]) -> None:
        if not args:
            raise ValueError("no words")
        if port is not None:
            for rank in range(2 if selection == "all" else 1):
                ranked_port(port, rank).send(args[0] * kwargs["times"])
