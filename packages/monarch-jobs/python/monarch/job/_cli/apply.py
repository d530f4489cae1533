"""`monarch apply [MODULE.ATTRIBUTE]`."""

from __future__ import annotations

import click

from monarch.job._cli.verb import verb


@verb("apply", short_help="Reserves the hosts of a job, or finds them again.")
@click.argument("spec", required=False, metavar="[MODULE.ATTRIBUTE]")
@click.option("--plan", "only_plan", is_flag=True, help="Print what would be submitted, and stop.")
@click.option("--as", "replace", type=click.Choice(["process"]), help="Use processes of this machine in the place of the hosts.")
def command(spec: str | None, only_plan: bool, replace: str | None) -> int:
    """Saves the job as the current one, reserves its hosts and waits until each of them answers.

    Without an argument it is the job that was applied last. An allocation that can run the job is used again.
    """
    import os
    import time

    from monarch.job import _lifecycle
    from monarch.job._current_job import load_current_job, resolve, set_current_job

    try:
        job = load_current_job() if spec is None else resolve(spec)
    except (ValueError, TypeError, ImportError) as e:
        raise click.UsageError(str(e)) from e
    if replace is not None:
        os.environ[_lifecycle.REPLACE] = replace
    if only_plan:
        click.echo(str(_lifecycle.intended(job).plan()), nl=False)
        return 0
    if spec is not None:
        set_current_job(spec)
    start = time.monotonic()
    state = job.state()
    for name in state:
        state[name].initialized.get()
    sizes = ", ".join(f"{name} ({state[name].extent.nelements if state[name].extent else 1})" for name in state)
    click.echo(f"{job._current._title}: {sizes} ready after {time.monotonic() - start:.1f} s")
    return 0
