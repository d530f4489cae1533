"""The verbs that monarch-fs adds to the command `monarch`, all on the current job: mount, refresh, umount, mounts, gather, push.

The keeper of the job has the mounts that the verbs make, beside those of the job's features, so they stay when the command has ended.
`push` needs the hosts for as long as it runs, and connects to them itself. The libraries are imported inside functions, since the help of
`monarch` loads this module.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import threading
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from monarch.job import Keeper, KeptStatus

_FAILED = 1
_NO_JOB = 3
_ENDED = 4
_INTERRUPTED = 130
# The most seconds from the end of a lease to the end of its mounts.
_UNMOUNT_SECONDS = 10.0
# The names of the services, as in the entry points of the keeper.
_MOUNT, _GATHER = "mount", "gather"


def _verb(name: str, help: str) -> Callable[[Callable[..., None]], click.Command]:
    def made(function: Callable[..., None]) -> click.Command:
        return click.command(name, short_help=help)(_guarded(function))

    return made


def _guarded(function: Callable[..., None]) -> Callable[..., int]:
    """Errors become their text on stderr and an exit code: 3 no such job, 4 job ended, 130 Ctrl-C, 1 anything else."""

    @functools.wraps(function)
    def guard(*args: Any, **kwargs: Any) -> int:
        from monarch.actor import MonarchError

        try:
            function(*args, **kwargs)
            return 0
        except (KeyboardInterrupt, click.Abort):
            return _INTERRUPTED
        except ModuleNotFoundError as e:
            if e.name != "monarch.job":
                raise
            click.echo(f"monarch: {e}", err=True)
            return _FAILED
        except (MonarchError, OSError, ValueError) as e:
            click.echo(f"monarch: {e}", err=True)
            code = getattr(e, "code", None)
            return _NO_JOB if code == "no_such_job" else _ENDED if code == "job_ended" else _FAILED

    return guard


def _keeper() -> Keeper:
    """The keeper of the current job, which has not ended."""
    from monarch.job import JobEndedError, StateFileError, job_load, keeper_of, load_current_job

    try:
        job = job_load()
    except StateFileError as e:
        if e.field != "kind":
            raise
        load_current_job()  # imports the module with the class of the job
        job = job_load()
    status = job.status()
    if status.phase in ("none", "ended"):
        raise JobEndedError("has ended", title=f"job {job.apply_id or ''}", cause=status.detail, state=status.phase, reason=status.detail)
    return keeper_of(job)


def _kept(keeper: Keeper, *services: str) -> list[KeptStatus]:
    # Restores the state of a killed keeper.
    keeper.restore()
    status = keeper.status()
    return [] if status is None else [one for one in status.services if one.service in services]


@_verb("mount", "Shows a directory of this machine on the hosts of the job.")
@click.argument("source")
@click.argument("target", required=False)
@click.option("--mesh", "meshes", multiple=True, help="Only this mesh; may be repeated.")
@click.option("--exclude", "excluded", multiple=True, metavar="GLOB", help="Leave out what matches; may be repeated.")
@click.option("--fetch", type=click.Choice(["hot", "all", "demand"]), help="What is sent before it is read.")
def mount(source: str, target: str | None, meshes: tuple[str, ...], excluded: tuple[str, ...], fetch: str | None) -> None:
    """Mounts SOURCE read-only at TARGET, by default at its own path, until `monarch umount` or `monarch kill`."""
    from monarch.fs._jobs.keeper_failure import raised_here

    if not source:
        raise click.UsageError("the source is empty: name a directory")
    source = os.path.abspath(source)
    target = source if target is None else target
    if not os.path.isabs(target):
        raise click.UsageError(f"the mount point {target} is not absolute")
    options: dict[str, Any] = {}
    if excluded:
        options["exclude"] = [".monarch", *excluded]
    if fetch is not None:
        options["fetch"] = fetch
    config = {"source": source, "target": target, "meshes": list(meshes) or None, "options": options}
    keeper = _keeper()
    found = next((one for one in _kept(keeper, _MOUNT) if one.key == target), None)
    if found is not None and {name: found.config.get(name) for name in config} != config:
        # Another configuration would end the existing mount before the new one is known to work.
        raise click.ClickException(f"{found.config.get('source')} is mounted at {target}: `monarch umount {target}` first")
    with raised_here():
        done = keeper.serve(_MOUNT, target, config)
    click.echo(f"{source} is mounted at {target} on {', '.join(done['generation'])}")


@_verb("refresh", "Brings mounted directories up to date.")
@click.argument("target", required=False)
def refresh(target: str | None) -> None:
    """Brings the mount at TARGET, or all mounts of the job, up to date with their sources."""
    from monarch.fs._jobs.keeper_failure import raised_here

    keeper = _keeper()
    found = [one for one in _kept(keeper, _MOUNT) if target in (None, one.key)]
    if not found:
        raise click.ClickException("nothing is mounted" if target is None else f"nothing is mounted at {target}")
    for one in found:
        with raised_here():
            done = keeper.serve(_MOUNT, one.key, one.config)
        click.echo(f"{one.key}: {done['changed']} changed, {done['bytes_sent']} bytes sent")


@_verb("umount", "Unmounts directories of the job.")
@click.argument("target", required=False)
@click.option("--all", "is_all", is_flag=True, help="All mounts and gathered directories of the job.")
def umount(target: str | None, is_all: bool) -> None:
    """Unmounts TARGET, a mount point on the hosts or a gathered directory on this machine.

    Exits with 1, and names the hosts, where another client shows the same directory there.
    """
    from monarch.fs._jobs.keeper_failure import raised_here

    if (target is None) != is_all:
        raise click.UsageError("either TARGET or --all")
    keeper = _keeper()
    # Paths of views are on this machine.
    here = None if target is None else os.path.abspath(target)
    found = [one for one in _kept(keeper, _MOUNT, _GATHER) if is_all or one.key == (here if one.service == _GATHER else target)]
    if not found and target is not None:
        raise click.ClickException(f"nothing is mounted at {target}")
    for one in found:
        with raised_here():
            keeper.stop(one.service, one.key, wait=_settled_seconds())
        click.echo(f"{one.key} is unmounted")


def _settled_seconds() -> float:
    """How long hosts may show the mounts of a keeper that was killed."""
    from monarch.extension import seconds

    return (seconds("mesh_orphan_timeout") or 0.0) + _UNMOUNT_SECONDS


@_verb("mounts", "Lists the mounts of the job.")
@click.option("--json", "as_json", is_flag=True, help="As one list.")
def mounts(as_json: bool) -> None:
    """Lists the directories that are mounted on the hosts, and those gathered from them."""
    rows = [
        {
            "kind": one.service,
            "source": one.config.get("source") or one.config.get("remote"),
            "target": one.key,
            "state": one.state,
            "meshes": one.config.get("meshes"),
            **one.detail,
        }
        for one in _kept(_keeper(), _MOUNT, _GATHER)
    ]
    if as_json:
        click.echo(json.dumps(rows))
        return
    for row in rows:
        click.echo(f"{row['kind']} {row['source']} at {row['target']}: {row['state']}, meshes: {', '.join(row['meshes'] or ['all'])}")


@_verb("gather", "Shows a directory of the hosts on this machine.")
@click.argument("remote")
@click.argument("local")
@click.option("--mesh", "meshes", multiple=True, help="Only this mesh; may be repeated.")
def gather(remote: str, local: str, meshes: tuple[str, ...]) -> None:
    """Shows REMOTE of each host in a directory of LOCAL, until `monarch umount LOCAL` or `monarch kill`."""
    from monarch.fs._jobs.keeper_failure import raised_here

    if not os.path.isabs(remote):
        raise click.UsageError(f"the path on the hosts {remote} is not absolute")
    local = os.path.abspath(local)
    config = {"remote": remote, "local": local, "meshes": list(meshes) or None}
    keeper = _keeper()
    found = next((one for one in _kept(keeper, _GATHER) if one.key == local), None)
    if found is not None and {name: found.config.get(name) for name in config} != config:
        raise click.ClickException(f"{found.config.get('remote')} is shown at {local}: `monarch umount {local}` first")
    with raised_here():
        done = keeper.serve(_GATHER, local, config)
    for place in done["local"].values():
        click.echo(f"{remote} is shown at {place}")


class _Once(logging.Filter):
    """Passes each text once."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._passed: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        with self._lock:
            is_new = text not in self._passed
            self._passed.add(text)
        return is_new


@_verb("push", "Writes a directory to the hosts as ordinary files.")
@click.argument("source")
@click.argument("target")
def push(source: str, target: str) -> None:
    """Writes the files of SOURCE below TARGET on every host of the job; what `.gitignore` names stays here."""
    import monarch.fs
    from monarch.job import attach_current_job

    if not os.path.isabs(target):
        raise click.UsageError(f"the target {target} is not absolute")
    source = os.path.abspath(source)
    _, state = attach_current_job()
    log, once = logging.getLogger("monarch.fs"), _Once()
    # Each mesh has its own push, all of the same source.
    log.addFilter(once)
    try:
        for name, future in [(name, monarch.fs.push(state[name], source, target)) for name in state]:
            click.echo(f"{name}: {future.get()}")
    finally:
        log.removeFilter(once)
