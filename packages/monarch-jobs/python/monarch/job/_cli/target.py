"""What the verbs act on that run things on hosts: meshes of the current job, and places in them as users write them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from monarch.job._cli.verb import current_job

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monarch.actor import HostMesh
    from monarch.job._job_state import JobState
    from monarch.job._trait import JobTrait

_PLACE = re.compile(r"(?P<mesh>[^\[\]]*)(?:\[(?P<point>[^\[\]]*)\])?")


def job_and_hosts() -> tuple[JobTrait, JobState]:
    """The current job and its meshes."""
    from monarch.job.local import LocalJob

    job = current_job()
    if isinstance(job, LocalJob) and job.process is None:
        # Its host is the machine of whoever asks: it does not end.
        return job, job._state()
    return job, job._reconnect()


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
    import os

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
    from monarch.job._exec import chosen

    try:
        fixed = chosen(hosts.sizes, None, point)
    except ValueError as e:
        raise click.UsageError(str(e)) from e
    return hosts.slice(**fixed) if fixed else hosts


def only_one(hosts: HostMesh, point: dict[str, int]) -> HostMesh:
    """One host: the first one, unless the point says which."""
    return sliced(hosts, {**dict.fromkeys(hosts.sizes, 0), **point})
