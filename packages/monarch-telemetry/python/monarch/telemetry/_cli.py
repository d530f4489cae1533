"""The verbs `query`, `diagnose` and `mcp` of the command `monarch`.

The libraries are imported inside functions: the help of `monarch` loads this module.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

    from monarch.telemetry._agents.actions import Actions
    from monarch.telemetry._asking import Asking
    from monarch.telemetry._diagnose.snapshot import Snapshot
    from monarch.telemetry._queries.canned import Canned
    from monarch.telemetry._queries.catalog import Catalog
    from monarch.telemetry._sql.coverage import Coverage

_FAILED = 1
_NO_JOB = 3
_MISSING = 4
INTERRUPTED = 130
_FORMATS = ("table", "json", "jsonl", "csv", "arrow")
# A statement has at most 16 KiB; a longer one is cut here and refused by its length.
_MOST_READ = 64 << 10


def verb(name: str, short_help: str) -> Callable[[Callable[..., int | None]], click.Command]:
    def made(function: Callable[..., int | None]) -> click.Command:
        return click.command(name, short_help=short_help)(_guarded(function))

    return made


def _guarded(function: Callable[..., int | None]) -> Callable[..., int]:
    """Errors become their text on stderr and an exit code: 4 missing hosts, 3 no such job, 130 Ctrl-C, 1 anything else."""

    @functools.wraps(function)
    def guard(*args: Any, **kwargs: Any) -> int:
        from monarch.actor import MonarchError

        try:
            return function(*args, **kwargs) or 0
        except (KeyboardInterrupt, click.Abort):
            return INTERRUPTED
        except BrokenPipeError:
            return _silenced()
        except (MonarchError, OSError) as e:
            note(str(e))
            return _NO_JOB if getattr(e, "code", None) == "no_such_job" else _FAILED

    return guard


def _silenced() -> int:
    """The reader of the output has enough: what Python still has to write at exit goes nowhere, and 0 is what `... | head` expects."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    return 0


def note(text: str) -> None:
    from monarch.telemetry._queries.values import printable

    lines = "\n".join(map(printable, text.split("\n")))
    click.echo(f"monarch: {lines}", err=True)


def _engine(addr: str | None, token_file: str | None, capture: str | None) -> Asking:
    """The engine of the running job, or one over a capture."""
    if capture is None:
        from importlib import import_module

        found: Asking = import_module("monarch.telemetry._http.remote_engine").find_engine(addr, token_file)
        return found
    if addr is not None or token_file is not None:
        raise click.UsageError("--from reads a capture: --addr and --token-file are for a running job")
    from monarch.telemetry._engine.one_host import OneHost
    from monarch.telemetry._export.capture import read

    tables = read(capture)
    for text in tables.notes:
        note(f"{capture}: {text}")
    return OneHost(tables)


def _where(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that name what is asked."""
    for option in (
        click.option("--from", "capture", metavar="CAPTURE", help="A file of `monarch capture` instead of a running job."),
        click.option("--token-file", metavar="FILE", help="The file with the token for --addr."),
        click.option("--addr", "-a", metavar="URL", help="The admin URL of a job; by default the current job."),
    ):
        function = option(function)
    return function


def duration(_context: click.Context, _parameter: click.Parameter, text: str) -> float:
    from monarch.telemetry._queries.durations import seconds

    try:
        return seconds(text)
    except ValueError as e:
        raise click.BadParameter(str(e)) from None


def _query_time(context: click.Context, parameter: click.Parameter, text: str) -> float:
    from monarch.telemetry._asking import MOST_SECONDS

    found = duration(context, parameter, text)
    if found > MOST_SECONDS:
        raise click.BadParameter(f"a query takes at most {MOST_SECONDS:g}s")
    return found


@verb("query", "Answers SQL over what a job does.")
@click.argument("sql", required=False)
@click.option("--file", "-f", metavar="FILE", help="Read the statement from FILE.")
@click.option("--run", metavar="NAME", help="Run a canned query.")
@click.option("--list", "as_list", is_flag=True, help="List the canned queries.")
@click.option("--catalog", "as_catalog", is_flag=True, help="List tables and columns, each with its meaning.")
@click.option("--format", "form", type=click.Choice(_FORMATS), default="table", show_default=True, help="How rows are written.")
@click.option(
    "--timeout", default="10s", show_default=True, callback=_query_time, metavar="TIME", help="When a query is ended, 10m at most."
)
@click.option("--all", "require_all", is_flag=True, help="Fail with 4 where a host is missing.")
@_where
def query(
    sql: str | None,
    file: str | None,
    run: str | None,
    as_list: bool,
    as_catalog: bool,
    form: Any,
    timeout: float,
    require_all: bool,
    addr: str | None,
    token_file: str | None,
    capture: str | None,
) -> int:
    """Prints the rows that SQL selects; - reads the statement from stdin.

    Rows go to stdout. Missing hosts and truncation go to stderr. Exits with 1 for a failed query, and with 4 where hosts were missing and
    --all was given.
    """
    if sum((sql is not None, file is not None, run is not None, as_list, as_catalog)) != 1:
        raise click.UsageError("give one of SQL, -, -f FILE, --run NAME, --list and --catalog")
    if as_catalog:
        from monarch.telemetry._tables.catalog import catalog

        return print_text(catalog())
    if as_list:
        return print_text(_canned().listing())
    out = sys.stdout.buffer
    if form == "arrow" and out.isatty():
        raise click.UsageError("--format arrow is binary: write it to a file or a pipe")
    if run is not None:
        canned = _canned().query(run)
        return _answer(_engine(addr, token_file, capture), canned.sql, form, timeout, require_all, out, canned)
    statement = _read(None if sql == "-" or file == "-" else file) if sql in (None, "-") else sql
    return _answer(_engine(addr, token_file, capture), statement, form, timeout, require_all, out)


def print_text(text: str) -> int:
    out = sys.stdout
    out.write(text)
    out.flush()
    return 0


def _canned() -> Catalog:
    from monarch.telemetry._queries.catalog import load

    found = load()
    for one in found.left_out:
        note(f"{one.path} is left out: {one.reason}")
    return found


def _read(path: str | None) -> str:
    """The statement in a file, or on stdin."""
    from monarch.telemetry.errors import QueryError

    if path is None:
        data = sys.stdin.buffer.read(_MOST_READ)
    else:
        with open(path, "rb") as file:
            data = file.read(_MOST_READ)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise QueryError(f"{path or 'stdin'} has no UTF-8 at byte {e.start}") from None


def _answer(engine: Asking, sql: str, form: Any, timeout: float, require_all: bool, out: BinaryIO, canned: Canned | None = None) -> int:
    from monarch.telemetry._queries.formats import write
    from monarch.telemetry._sql.limits import DEFAULT
    from monarch.telemetry.errors import PartialAnswer

    # The engine of another process reduces these to the limits of the token.
    limits = DEFAULT._replace(seconds=max(timeout, DEFAULT.seconds))
    try:
        table, coverage = engine.ask(sql, timeout=timeout, require_all=require_all, limits=limits)
    except PartialAnswer as e:
        if e.table is not None:
            write(e.table, form, out, terminal=out.isatty())
            out.flush()
        note(str(e))
        return _MISSING
    write(table, form, out, terminal=out.isatty())
    out.flush()
    if canned is not None and form == "table":
        click.echo(f"no rows: {canned.name} finds nothing" if table.num_rows == 0 else canned.help(), err=True, nl=table.num_rows == 0)
    _cover(coverage)
    return 0


def _cover(coverage: Coverage) -> None:
    """What a reader has to know about rows that are not there."""
    if coverage.missing or coverage.hosts_answered < coverage.hosts_asked:
        lines = "".join(f"\n  {one.host}: {one.reason}" for one in coverage.missing)
        note(f"{coverage.hosts_answered} of {coverage.hosts_asked} hosts have answered{lines}")
    if coverage.truncated:
        note("the answer is truncated: rows are missing from it")


@verb("diagnose", "Finds what is wrong with a job, and why.")
@click.argument("pid", type=int, required=False)
@click.option("--json", "as_json", is_flag=True, help="All that was found, as an object.")
@_where
def diagnose(pid: int | None, as_json: bool, addr: str | None, token_file: str | None, capture: str | None) -> int:
    """Prints the causes of what is wrong with a job now, most likely first, each with the facts that show it and the next command.

    The job is the only one of this user on this machine, or the one whose client is PID. Where telemetry runs, its tables count too. Exits
    with 0 where nothing is wrong, and with 1 where a cause was found.
    """
    from monarch.telemetry._diagnose.diagnosis import diagnosed

    found = diagnosed(_snapshot(pid, addr, token_file, capture))
    if as_json:
        import json

        print_text(json.dumps(found.to_json(), indent=2) + "\n")
    else:
        print_text(f"{found}\n")
    return _FAILED if found.causes else 0


def _snapshot(pid: int | None, addr: str | None, token_file: str | None, capture: str | None) -> Snapshot:
    """What is known of a job: of processes of this machine, and of the tables where telemetry runs."""
    from monarch.telemetry._diagnose.collect import collected, engine_of, job_again, job_of, of_engine
    from monarch.telemetry.errors import TelemetryError

    if addr is not None or capture is not None:
        if pid is not None:
            raise click.UsageError("PID names a job of this machine: give it without --addr and --from")
        return of_engine(_engine(addr, token_file, capture))
    job = job_of(pid)
    try:
        engine = engine_of(job, _engine(None, token_file, None))
    except TelemetryError:
        engine = None
    return collected(lambda: job_again(job), engine, first=job)


@verb("mcp", "Serves coding agents over stdin and stdout (Model Context Protocol).")
@click.option("--allow-actions", is_flag=True, help="Let the agent stop meshes, kill procs and heal the job, too.")
@_where
def mcp(allow_actions: bool, addr: str | None, token_file: str | None, capture: str | None) -> None:
    """Answers an agent that has started this command, until it closes stdin. Without --allow-actions it only reads."""
    from monarch.telemetry._agents.mcp_server import serve
    from monarch.telemetry._agents.tools import Tools

    if capture is not None:
        if allow_actions:
            raise click.UsageError("--allow-actions is for a running job: a capture has nothing to act on")
        engine = _engine(addr, token_file, capture)
        newest = engine.ask("SELECT max(timestamp_us) FROM logs").table.column(0).to_pylist()[0] or 0
        serve(Tools(lambda: engine, now_us=lambda: newest))
        return
    actions = _actions(addr, token_file) if allow_actions else None
    serve(Tools(lambda: _engine(addr, token_file, None), actions=actions))


def _actions(addr: str | None, token_file: str | None) -> Actions:
    """What acts on the running job."""
    from importlib import import_module

    found: Actions = import_module("monarch.telemetry._agents.remote_actions").find_actions(addr, token_file)
    return found
