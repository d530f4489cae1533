"""`monarch port-forward [MESH[:POINT]] LOCAL:REMOTE...`."""

from __future__ import annotations

from typing import NamedTuple

import click

from monarch.job._cli.verb import INTERRUPTED, verb


class Ports(NamedTuple):
    address: str
    remote: int


@verb("port-forward", short_help="Makes ports of a host of the current job ports of this machine.")
@click.argument("words", nargs=-1, required=True, metavar="[MESH[:POINT]] LOCAL:REMOTE...")
def command(words: tuple[str, ...]) -> int:
    """Tunnels until Ctrl-C: what connects to LOCAL here is connected with REMOTE on the host, the first one if nothing is said.

    LOCAL is a port, or an address with a port; without an address only this machine can connect; 0 takes any free port. POINT is
    dimension=number,...; one number alone stands for the same port at both ends.
    """
    import signal

    from monarch.actor import this_proc
    from monarch.job._cli.target import job_and_hosts, mesh_of, only_one, pairs
    from monarch.job._forward import PortForwarder

    mesh, point, ports = parse(words)
    _, state = job_and_hosts()
    name, hosts = mesh_of(state, mesh)
    host = only_one(hosts, pairs(point, "POINT"))
    procs = host.spawn_procs(name="port-forward")
    procs.initialized.get()
    here = this_proc()
    forwarder = here.spawn("port-forward", PortForwarder)
    for one in ports:
        forwarder.forward.call_one(procs, one.remote, here, one.address).get()
    where = f"{name}[{point}]" if point else name
    for one, address in zip(ports, forwarder.addresses.call_one().get(), strict=True):
        click.echo(f"{address} -> {where}:{one.remote}")
    try:
        # What is lost ends the program by its failure, which interrupts as well.
        while True:
            signal.pause()
    except KeyboardInterrupt:
        return INTERRUPTED


def parse(words: tuple[str, ...]) -> tuple[str | None, str | None, list[Ports]]:
    """Mesh, point, and what is to be connected with what."""
    mesh = point = None
    try:
        _ports(words[0])
    except click.UsageError:
        mesh, _, point = words[0].partition(":")
        words = words[1:]
        if not words:
            raise
    return mesh or None, point or None, [_ports(word) for word in words]


def _ports(word: str) -> Ports:
    from monarch.job._tunnel import parse_address

    local, colon, remote = word.rpartition(":")
    try:
        if not colon:
            local = remote
        _, port = parse_address(remote)
        if port == 0:
            raise ValueError("port 0 at the other end")
        parse_address(local)
    except ValueError as e:
        raise click.UsageError(f"'{word}': expected LOCAL:REMOTE: {e}") from e
    return Ports(local, port)
