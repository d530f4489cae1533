"""The verbs that reach hosts of the current job: `monarch shell`, `monarch cp`, `monarch port-forward`."""

from __future__ import annotations

import re
import signal
from typing import NamedTuple

import click

from monarch.job._cli.verb import FAILED, INTERRUPTED, job_and_hosts, mesh_of, only_one, pairs, place, sliced, variables, verb


@verb("shell", short_help="A shell on a host of the current job.")
@click.option("--mesh", metavar="NAME", help="The mesh; the first one if left out.")
@click.option("--point", metavar="D=N,...", help="Which of its hosts; the first one if left out.")
@click.option("-e", "--env", "env", multiple=True, metavar="K=V", help="Environment; K alone passes on what it is here.")
@click.option("--workdir", metavar="D", help="The folder on the host to begin in.")
@click.option("--kill", is_flag=True, help="Afterwards, kill the job.")
def shell(mesh: str | None, point: str | None, env: tuple[str, ...], workdir: str | None, kill: bool) -> int:
    """Connects this terminal with a login shell on one host, and exits with its exit code.

    `~.` at the start of a line leaves, also when the host does not answer.
    """
    from monarch.job._client.shell import shell as run_shell

    job, state = job_and_hosts()
    _, hosts = mesh_of(state, mesh)
    host = only_one(hosts, pairs(point, "--point"))
    try:
        return run_shell(host, env=variables(env), workdir=workdir)
    finally:
        if kill:
            job.kill()


_REMOTE = re.compile(r"(?P<place>[^/:\[\]]+(?:\[[^/\[\]]*\])?):(?P<path>.*)", re.DOTALL)


@verb("cp", short_help="Copies files and trees to and from the hosts of the current job.")
@click.argument("src")
@click.argument("dst")
def cp(src: str, dst: str) -> int:
    """Copies a file or a tree, with modes and times; one of SRC and DST is on hosts: MESH:PATH or MESH[hosts=0]:PATH.

    A file that is copied to a directory goes into it under its own name. To a mesh means to each of its hosts, from several hosts means
    into a folder for each, `DST/hosts_0` and so on. Links stay links. Exits with 1 if something had to be left out.
    """
    from monarch.job._client import copy

    there, here = _REMOTE.fullmatch(src), _REMOTE.fullmatch(dst)
    if (there is None) == (here is None):
        raise click.UsageError("one of SRC and DST is MESH:PATH, the other a path of this machine (with './' in front if it has a colon)")
    remote = there or here
    assert remote is not None
    name, point = place(remote["place"])
    _, state = job_and_hosts()
    hosts = sliced(mesh_of(state, name)[1], point)
    if not remote["path"] and there is not None:
        raise click.UsageError(f"'{src}': no path")
    skipped = copy.upload(src, hosts, remote["path"]) if there is None else copy.download(hosts, remote["path"], dst)
    for path, why in skipped:
        click.echo(f"monarch: left out: {path}: {why}", err=True)
    return FAILED if skipped else 0


class Ports(NamedTuple):
    address: str
    remote: int


@verb("port-forward", short_help="Makes ports of a host of the current job ports of this machine.")
@click.argument("words", nargs=-1, required=True, metavar="[MESH[:POINT]] LOCAL:REMOTE...")
def port_forward(words: tuple[str, ...]) -> int:
    """Tunnels until Ctrl-C: what connects to LOCAL here is connected with REMOTE on the host, the first one by default.

    LOCAL is a port, or an address with a port; without an address only this machine can connect; 0 takes any free port. POINT is
    dimension=number,...; one number alone stands for the same port at both ends.
    """
    from monarch.actor import this_proc
    from monarch.job._client.port_forward import PortForwarder

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
        # A lost host ends the program by its failure, which interrupts as well.
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
    from monarch.job._host.tunnel import parse_address

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
