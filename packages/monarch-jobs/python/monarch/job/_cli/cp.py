"""`monarch cp SRC DST`."""

from __future__ import annotations

import re

import click

from monarch.job._cli.verb import FAILED, verb

_REMOTE = re.compile(r"(?P<place>[^/:\[\]]+(?:\[[^/\[\]]*\])?):(?P<path>.*)", re.DOTALL)


@verb("cp", short_help="Copies files and trees to and from the hosts of the current job.")
@click.argument("src")
@click.argument("dst")
def command(src: str, dst: str) -> int:
    """Copies a file or a tree, with modes and times; one of SRC and DST is on hosts: MESH:PATH or MESH[hosts=0]:PATH.

    What is copied to a directory goes into it under its own name. To a mesh means to each of its hosts, from several hosts means into a
    folder for each, `DST/hosts_0` and so on. Links stay links. Exits with 1 if something had to be left out.
    """
    from monarch.job import _copy
    from monarch.job._cli.target import job_and_hosts, mesh_of, place, sliced

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
    skipped = _copy.upload(src, hosts, remote["path"]) if there is None else _copy.download(hosts, remote["path"], dst)
    for path, why in skipped:
        click.echo(f"monarch: left out: {path}: {why}", err=True)
    return FAILED if skipped else 0
