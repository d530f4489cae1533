"""What the verbs share: errors become exit codes, and the current job is found.

A verb is made so, and loads what it needs inside its function, because `monarch` has to start quickly:

    @verb("status", short_help="Scheduler phase, hosts, last words.")
    @click.option("--json", "as_json", is_flag=True)
    def status(as_json: bool) -> int:
        job = current_job()

Verbs that run things on hosts name meshes of the current job, and places in them, as users write them.
"""

from __future__ import annotations

import functools
import os
import re
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monarch.actor import HostMesh
    from monarch.job._job.job_state import JobState
    from monarch.job._job.trait import JobTrait


FAILED = 1
NO_JOB = 3
ENDED = 4
INTERRUPTED = 130


def verb(name: str, **attributes: Any) -> Callable[[Callable[..., int | None]], click.Command]:
    """A `click.Command` of this name; `attributes` go to `click.command`."""

    def made(function: Callable[..., int | None]) -> click.Command:
        return click.command(name, **attributes)(guarded(function))

    return made


def guarded(function: Callable[..., int | None]) -> Callable[..., int]:
    """Turns errors into their text on stderr and an exit code: 3 no such job, 4 job ended, 130 Ctrl-C, 1 anything else."""

    @functools.wraps(function)
    def guard(*args: Any, **kwargs: Any) -> int:
        try:
            return function(*args, **kwargs) or 0
        except (KeyboardInterrupt, click.Abort):
            return INTERRUPTED
        except click.ClickException:
            raise  # usage; the command itself shows it
        except Exception as e:
            code = exit_code(e)
            if code is None:
                raise
            click.echo(f"monarch: {e}", err=True)
            return code

    return guard


def exit_code(error: Exception) -> int | None:
    """The exit code for an error that a user can do something about; None for any other."""
    from monarch.actor import MonarchError
    from monarch.job.errors import NO_JOB as NO_JOB_CODE
    from monarch.job.errors import JobEndedError

    if isinstance(error, JobEndedError):
        return ENDED
    if not isinstance(error, MonarchError):
        return None
    return NO_JOB if error.code == NO_JOB_CODE else FAILED


def current_job() -> JobTrait:
    """The job of the active context; `JobError` with code `no_such_job` where there is none."""
    from monarch.job._lookup import current_job

    return current_job()


def loaded(path: str, context: str | None) -> JobTrait | None:
    """The job of a state file, None without one."""
    from monarch.job._lookup import loaded

    return loaded(path, context)


_PLACE = re.compile(r"(?P<mesh>[^\[\]]*)(?:\[(?P<point>[^\[\]]*)\])?")


def job_and_hosts() -> tuple[JobTrait, JobState]:
    """The current job and its meshes."""
    from monarch.job._lookup import attach_current_job

    return attach_current_job()


def mesh_of(state: JobState, name: str | None) -> tuple[str, HostMesh]:
    """The mesh of this name, or the first one."""
    if name is None:
        name = next(iter(state))
    if name not in state:
        raise click.UsageError(f"no mesh '{name}' in this job, there is: {', '.join(state)}")
    return name, state[name]


def pairs(text: str | None, what: str) -> dict[str, int]:
    """`d=n,d=n`."""
    found: dict[str, int] = {}
    for part in filter(None, (text or "").split(",")):
        label, _, number = part.partition("=")
        label, number = label.strip(), number.strip()
        if not label or not number.isascii() or not number.isdigit() or label in found:
            raise click.UsageError(f"{what} '{text}': expected dimension=number, separated by commas")
        found[label] = int(number)
    return found


def variables(given: Sequence[str]) -> dict[str, str]:
    """`K=V`; a name alone stands for the variable as it is here."""
    found: dict[str, str] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not name:
            raise click.UsageError(f"-e '{one}': expected NAME=VALUE")
        if equals:
            found[name] = value
        elif name in os.environ:
            found[name] = os.environ[name]
    return found


def place(text: str) -> tuple[str, dict[str, int]]:
    """`mesh` or `mesh[hosts=0]`."""
    match = _PLACE.fullmatch(text)
    if match is None:
        raise click.UsageError(f"'{text}': expected MESH or MESH[dimension=number]")
    return match["mesh"], pairs(match["point"], "point")


def sliced(hosts: HostMesh, point: dict[str, int]) -> HostMesh:
    """The hosts at these coordinates."""
    from monarch.job._client.exec import chosen

    try:
        fixed = chosen(hosts.sizes, None, point)
    except ValueError as e:
        raise click.UsageError(str(e)) from e
    return hosts.slice(**fixed) if fixed else hosts


def only_one(hosts: HostMesh, point: dict[str, int]) -> HostMesh:
    """One host: that of the point, the first one by default."""
    return sliced(hosts, {**dict.fromkeys(hosts.sizes, 0), **point})
