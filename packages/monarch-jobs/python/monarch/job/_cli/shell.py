"""`monarch shell`."""

from __future__ import annotations

import click

from monarch.job._cli.verb import verb


@verb("shell", short_help="A shell on a host of the current job.")
@click.option("--mesh", metavar="NAME", help="The mesh; the first one if left out.")
@click.option("--point", metavar="D=N,...", help="Which of its hosts; the first one if left out.")
@click.option("-e", "--env", "env", multiple=True, metavar="K=V", help="Environment; K alone passes on what it is here.")
@click.option("--workdir", metavar="D", help="The folder on the host to begin in.")
@click.option("--kill", is_flag=True, help="Afterwards, kill the job.")
def command(mesh: str | None, point: str | None, env: tuple[str, ...], workdir: str | None, kill: bool) -> int:
    """Connects this terminal with a login shell on one host, and exits with its exit code.

    `~.` at the start of a line leaves, also when the host does not answer.
    """
    from monarch.job._cli.target import job_and_hosts, mesh_of, only_one, pairs, variables
    from monarch.job._shell import shell

    job, state = job_and_hosts()
    _, hosts = mesh_of(state, mesh)
    host = only_one(hosts, pairs(point, "--point"))
    try:
        return shell(host, env=variables(env), workdir=workdir)
    finally:
        if kill:
            job.kill()
