"""The verbs that are about a job as a whole: `monarch apply`, `status`, `logs`, `heal`, `kill`."""

from __future__ import annotations

import json
import os
import threading
import time
from typing import TYPE_CHECKING

import click

from monarch.job._cli.verb import ENDED, FAILED, current_job, loaded, verb
from monarch.job._job import hooks

if TYPE_CHECKING:
    from typing import BinaryIO

    from monarch.job._client.keeper import KeeperStatus
    from monarch.job._job.launcher import JobStatus, LogFile
    from monarch.job._job.trait import JobTrait

# The end of `monarch --help`: the relation of the verbs, for a reader of nothing else.
GUIDE = """\
Working with a job:
  monarch apply my_module.job      reserves hosts, waits until they answer
  monarch status; monarch logs     what the scheduler and the workers say
  monarch kill                     gives the hosts back

Job reuse: hosts are reserved once and used many times. `apply`, and
`job.state()` in a script, find the job of this directory again and change
nothing; edit, run again, and `kill` only at the end. Print before you submit
with `apply --plan`; try on one machine with `apply --as process`.

Commands on hosts go through `monarch exec`: one process on each host, several
with `--per-host procs=8`. Exit codes: the command's own, 2 usage, 3 no such
job, 4 job ended, 130 Ctrl-C. `--json` is there wherever a table is printed.
"""


@verb("apply", short_help="Reserves the hosts of a job, or finds them again.")
@click.argument("spec", required=False, metavar="[MODULE.ATTRIBUTE]")
@click.option("--plan", "only_plan", is_flag=True, help="Print what would be submitted, and stop.")
@click.option("--as", "replace", type=click.Choice(["process"]), help="Use processes of this machine in the place of the hosts.")
def apply(spec: str | None, only_plan: bool, replace: str | None) -> int:
    """Saves the job as the current one, reserves its hosts and waits until each of them answers.

    Without an argument it is the job that was applied last. An allocation that can run the job is used again.
    """
    from monarch.job._job.local_reproduction import REPLACE
    from monarch.job._job.trait import current, intended
    from monarch.job._lookup import load_current_job, resolve, set_current_job

    try:
        job = load_current_job() if spec is None else resolve(spec)
    except (ValueError, TypeError, ImportError) as e:
        raise click.UsageError(str(e)) from e
    if replace is not None:
        os.environ[REPLACE] = replace
    if only_plan:
        click.echo(str(intended(job).plan()), nl=False)
        return 0
    if spec is not None:
        set_current_job(spec)
    start = time.monotonic()
    state = job.state()
    for name in state:
        state[name].initialized.get()
    sizes = ", ".join(f"{name} ({state[name].extent.nelements if state[name].extent else 1})" for name in state)
    click.echo(f"{hooks.title(current(job))}: {sizes} ready after {time.monotonic() - start:.1f} s")
    return 0


# Seconds between two queries of `status --watch`, and of `logs --follow`.
_STATUS_INTERVAL_S = 2.0
_LOGS_INTERVAL_S = 0.2


@verb("status", short_help="Shows the scheduler's phase, the hosts and their last words.")
@click.option("--watch", is_flag=True, help="Look again every two seconds until Ctrl-C, or until the job has ended.")
@click.option("--json", "as_json", is_flag=True, help="As one object a look.")
def status(watch: bool, as_json: bool) -> int:
    """Shows the current job. Exits with 3 if there is none, with 4 if it has ended."""
    job = current_job()
    while True:
        status = job.status()
        _show_status(hooks.title(job), status, as_json, _keeper_status(job))
        if status.phase in ("none", "ended"):
            return ENDED
        # An event that is never set: Ctrl-C ends the wait.
        if not watch or threading.Event().wait(_STATUS_INTERVAL_S):
            return 0


def _keeper_status(job: JobTrait) -> KeeperStatus | str | None:
    """The keeper that runs, or why it does not answer."""
    from monarch.job._client.keeper import Keeper
    from monarch.job.errors import JobError

    apply_id = job.apply_id
    try:
        return None if apply_id is None else Keeper(apply_id).status()
    except JobError as e:
        return str(e).splitlines()[0]


def _show_status(title: str, status: JobStatus, as_json: bool, keeper: KeeperStatus | str | None = None) -> None:
    if as_json:
        described = keeper
        if keeper is not None and not isinstance(keeper, str):
            described = {"pid": keeper.pid, "services": [one._asdict() for one in keeper.services]}
        hosts = [host._asdict() for host in status.hosts]
        click.echo(json.dumps({"job": title, **status._asdict(), "hosts": hosts, "keeper": described}))
        return
    # A detail may have the tail of a log: its first line is the state, the others follow below.
    detail, *tail = status.detail.splitlines() or [""]
    click.echo("\n".join([f"{title}: {status.phase}{f' ({detail})' if detail else ''}", *(f"  {line}" for line in tail)]))
    rows = [("HOST", "NAME", "PHASE", "ADDRESS", "DETAIL")]
    rows += [(f"{host.mesh}[{host.rank}]", host.name or "-", host.phase, host.address or "-", host.detail) for host in status.hosts]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows if status.hosts else ():
        detail, *tail = row[-1].splitlines() or [""]
        click.echo("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), detail]).rstrip())
        for line in tail:
            click.echo(f"    {line}")
    if isinstance(keeper, str):
        click.echo(keeper)
    elif keeper is not None:
        click.echo(f"keeper: pid {keeper.pid}{'' if keeper.services else ', serves nothing'}")
        for one in keeper.services:
            click.echo(f"  {one.service} {one.key}: {one.state}")


@verb("logs", short_help="Shows what the workers have printed.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what is printed from now on, until Ctrl-C or the job's end.")
@click.option("--mesh", help="Only this mesh.")
@click.option("--rank", type=click.IntRange(min=0), help="Only this host of each mesh.")
@click.option("--system", is_flag=True, help="Only what the scheduler and the job's own script have printed.")
@click.option("--keeper", is_flag=True, help="The log of the job's keeper.")
def logs(follow: bool, mesh: str | None, rank: int | None, system: bool, keeper: bool) -> int:
    """Shows the files of the current job, those on its machines too where ssh starts the workers.

    Without --mesh and --rank, what the scheduler and the job's own script have printed is shown too, such as the output of a batch job.
    """
    if system and keeper:
        raise click.UsageError("--system and --keeper exclude each other")
    from monarch.job._job.trait import current

    job = current_job()

    def find() -> list[LogFile]:
        if keeper:
            return [_keeper_log(job)]
        # The output of the script belongs to no part of the hosts.
        is_part = mesh is not None or rank is not None
        found = hooks.fetch_logs(current(job))
        return [log for log in found if (not is_part if log.stream == "system" else not system)]

    files = find()
    known = list(dict.fromkeys(log.mesh for log in files))
    if mesh is not None and mesh not in known and not system and not keeper:
        raise click.UsageError(f"no mesh '{mesh}', there is: {', '.join(known) or 'none with logs'}")
    tails: dict[LogFile, _Tail] = {}

    def show() -> None:
        wanted = [log for log in files if keeper or (mesh in (None, log.mesh) and rank in (None, log.rank))]
        for log in wanted:
            tails.setdefault(log, _Tail(log, len({(log.mesh, log.rank, log.stream == "system") for log in wanted}) > 1))
        for one in tails.values():
            one.copy()

    try:
        show()
        is_running = follow
        while is_running:
            threading.Event().wait(_LOGS_INTERVAL_S)
            # The status is read before the files, so that all output up to the end is shown. A replaced host has another file.
            is_running = job.status().phase not in ("none", "ended")
            files = find()
            show()
    finally:
        for one in tails.values():
            one.close()
    return 0


def _keeper_log(job: JobTrait) -> LogFile:
    from monarch.job._client.keeper import Keeper
    from monarch.job._job.launcher import LogFile

    apply_id = job.apply_id
    path = None if apply_id is None else Keeper(apply_id).log
    if path is None or not os.path.exists(path):
        raise click.ClickException("this job has no keeper")
    return LogFile("keeper", 0, "system", path)


class _Tail:
    """One file: gives whole lines as they come, named where there are several."""

    def __init__(self, log: LogFile, is_named: bool) -> None:
        self._log = log
        place = "system" if log.stream == "system" else f"{log.mesh}[{log.rank}]"
        self._prefix = f"[{place}] ".encode() if is_named else b""
        self._file: BinaryIO | None = None
        self._rest = b""

    def copy(self) -> None:
        if self._file is None:
            try:
                self._file = open(self._log.path, "rb")
            except FileNotFoundError:
                return
        if os.fstat(self._file.fileno()).st_size < self._file.tell():
            # A keeper has shortened its log.
            self._file.seek(0)
        data = self._rest + self._file.read()
        lines = data.split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            click.echo(self._prefix + line, err=self._log.stream == "err")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            if self._rest:
                click.echo(self._prefix + self._rest, err=self._log.stream == "err")


@verb("heal", short_help="Brings lost hosts of the job back.")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), help="Seconds to wait for hosts that were started again.")
@click.option("--json", "as_json", is_flag=True, help="As one object.")
def heal(timeout: float | None, as_json: bool) -> int:
    """Does the least that works: starts workers again in place, else elsewhere. Exits with 1 if hosts stay missing."""
    report = current_job().heal(timeout=timeout)
    if as_json:
        click.echo(json.dumps({kind: [host._asdict() for host in hosts] for kind, hosts in report._asdict().items()}))
    else:
        for kind, hosts in report._asdict().items():
            for host in hosts:
                click.echo(f"{kind}: {host.mesh}[{host.rank}] {host.name} {host.detail}".rstrip())
        if not any(report):
            click.echo("no host is lost")
    return FAILED if report.missing else 0


@verb("kill", short_help="Ends a job and removes its state.")
@click.argument("context", required=False)
def kill(context: str | None) -> int:
    """Ends the job of the active context, or of CONTEXT. Nothing to kill is fine."""
    from monarch.job._files import contexts
    from monarch.job._files.state_file import DEFAULT_JOB_PATH

    path = DEFAULT_JOB_PATH if context is None else contexts.state_path(context)
    if context is not None and context not in contexts.names():
        raise contexts.unknown(context)
    job = loaded(path, context)
    if job is None:
        click.echo("nothing to kill")
        return 0
    title = hooks.title(job)
    job.kill()
    click.echo(f"{title}: killed")
    return 0
