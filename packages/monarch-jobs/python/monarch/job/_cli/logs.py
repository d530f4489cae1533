"""`monarch logs`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from monarch.job._cli.verb import current_job, verb

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import BinaryIO

    from monarch.job._trait import LogFile

_INTERVAL = 0.2


@verb("logs", short_help="Shows what the workers have printed.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what is printed from now on, until Ctrl-C or the job's end.")
@click.option("--mesh", help="Only this mesh.")
@click.option("--rank", type=click.IntRange(min=0), help="Only this host of each mesh.")
@click.option("--system", is_flag=True, help="What the scheduler and the job's own script have printed.")
@click.option("--keeper", is_flag=True, help="The log of the job's keeper.")
def command(follow: bool, mesh: str | None, rank: int | None, system: bool, keeper: bool) -> int:
    """Shows the files of the current job, those on its machines too where ssh starts the workers."""
    if system and keeper:
        raise click.UsageError("--system and --keeper exclude each other")
    if keeper:
        raise click.ClickException("this job has no keeper")
    job = current_job()
    files = [log for log in job._current._fetch_logs() if (log.stream == "system") == system]
    known = list(dict.fromkeys(log.mesh for log in files))
    if mesh is not None and mesh not in known and not system:
        raise click.UsageError(f"no mesh '{mesh}', there is: {', '.join(known) or 'none with logs'}")
    files = [log for log in files if mesh in (None, log.mesh) and rank in (None, log.rank)]
    tails = [_Tail(log, len(files) > 2) for log in files]
    try:
        _copy(tails)
        if follow:
            import threading

            is_running = True
            while is_running:
                threading.Event().wait(_INTERVAL)
                # Looked at before the files: all that was printed up to the end is shown.
                is_running = job.status().phase not in ("none", "ended")
                job._current._fetch_logs()
                _copy(tails)
    finally:
        for one in tails:
            one.close()
    return 0


def _copy(tails: Iterable[_Tail]) -> None:
    for one in tails:
        one.copy()


class _Tail:
    """One file: gives whole lines as they come, named where there are several."""

    def __init__(self, log: LogFile, is_named: bool) -> None:
        self._log = log
        self._prefix = f"[{log.mesh}[{log.rank}]] ".encode() if is_named else b""
        self._file: BinaryIO | None = None
        self._rest = b""

    def copy(self) -> None:
        if self._file is None:
            try:
                self._file = open(self._log.path, "rb")
            except FileNotFoundError:
                return
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
