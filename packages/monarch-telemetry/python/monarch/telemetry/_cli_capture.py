"""The verbs `capture`, `profile` and `dashboard` of the command `monarch`, and the command `monarch-dashboard`.

The libraries are imported inside functions: the help of `monarch` loads this module.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from monarch.telemetry._cli import INTERRUPTED, duration, note, print_text, verb

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monarch.telemetry._asking import Answer
    from monarch.telemetry._http.parts import Parts
    from monarch.telemetry._http.remote_engine import Found

_PORT = 5000
# The exit code that a shell has for a program that SIGTERM ended.
_TERMINATED = 143


def _found(addr: str | None, token_file: str | None) -> Found:
    """The server of the job. `click.UsageError` for a URL that is none."""
    from monarch.telemetry._http.http_client import HttpClient
    from monarch.telemetry._http.remote_engine import find

    found = find(addr, token_file)
    try:
        HttpClient(found.url, token=found.token)
    except ValueError as error:
        raise click.UsageError(f"{found.url}: {error}") from None
    return found


_addr = click.option("--addr", "-a", metavar="URL", help="The admin URL of a job; by default the current job.")
_token_file = click.option("--token-file", metavar="FILE", help="The file with the token for the URL.")


def _optional_duration(context: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    return None if text is None else duration(context, parameter, text)


class _Taken:
    """Passes answers on, and keeps what a reader has to know about rows that are not there."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._missing: dict[str, tuple[str, list[str]]] = {}
        self._truncated: list[str] = []

    def each(self, answers: Iterator[tuple[str, Answer]]) -> Iterator[tuple[str, Answer]]:
        for name, answer in answers:
            for one in answer.coverage.missing:
                self._missing.setdefault(one.host, (one.reason, []))[1].append(name)
            if answer.coverage.truncated:
                self._truncated.append(name)
            yield name, answer

    def state(self) -> None:
        """On stderr."""
        for host, (reason, tables) in self._missing.items():
            where = f"table {tables[0]}" if len(tables) == 1 else f"{len(tables)} tables"
            note(f"host {host} is missing from {where}: {reason}")
        for name in self._truncated:
            note(f"table {name} is truncated: it has more rows than can be asked for")
        for text in self.notes:
            note(text)


@verb("capture", "Writes all tables of a job to one file.")
@click.option("--output", "-o", required=True, metavar="FILE", help="The file.")
@click.option(
    "--since",
    callback=_optional_duration,
    metavar="TIME",
    help="Only the history of the last TIME, such as 10m.",
)
@click.option("--force", is_flag=True, help="Replace FILE where it exists.")
@_token_file
@_addr
def capture(output: str, since: float | None, force: bool, addr: str | None, token_file: str | None) -> None:
    """Saves what a running job knows about itself, for a bug report or a later look.

    `monarch query --from FILE`, `monarch profile --from FILE`, `monarch mcp --from FILE` and `monarch-dashboard --db FILE` read the file.
    Secrets are masked. Hosts that did not answer, and tables that are not complete, go to stderr.
    """
    from monarch.extension.masking import Masking, is_secret_variable
    from monarch.telemetry._export.capture import write
    from monarch.telemetry._export.manifest import Meta
    from monarch.telemetry._export.whole_tables import now_us, stored
    from monarch.telemetry._http.remote_engine import RemoteEngine, known_tokens

    found = _found(addr, token_file)
    engine = RemoteEngine(found)
    until = now_us(engine)
    since_us = None if since is None else max(until - round(since * 1e6), 0)
    # Programs print the URL of the dashboard, which contains a token.
    secrets = {*known_tokens(), *(value for name, value in os.environ.items() if is_secret_variable(name))}
    secrets |= {found.token} if found.token is not None else set()
    taken = _Taken()
    answers = taken.each(stored(engine, since_us=since_us, note=taken.notes.append))
    manifest = write(output, answers, meta=Meta(since_us=since_us), masking=Masking(secrets), force=force)
    taken.state()
    rows = sum(one.rows for one in manifest.tables.values())
    print_text(f"{output}: {rows:,} rows of {len(manifest.tables)} tables, {os.path.getsize(output):,} bytes\n")


@verb("profile", "Records a time window of a job for Perfetto.")
@click.argument("url", required=False)
@click.option("--time", "seconds", default="10s", show_default=True, callback=duration, metavar="TIME", help="How long to record.")
@click.option("--from", "saved", metavar="CAPTURE", help="A file of `monarch capture` instead of a running job: all of its history.")
@click.option("--output", "-o", metavar="OUT", help="The file; by default a new one in this folder. It is replaced where it exists.")
@_token_file
@click.pass_context
def profile(context: click.Context, url: str | None, seconds: float, saved: str | None, output: str | None, token_file: str | None) -> None:
    """Writes one trace of the whole job, for https://ui.perfetto.dev, and prints its path.

    Without URL the job is the current one. The command waits while the job works, and asks for the rows of that time then.
    """
    from monarch.telemetry._export.window import check

    check(output)
    if saved is not None:
        if url is not None or token_file is not None or _is_given(context, "seconds"):
            raise click.UsageError("--from reads a capture: URL, --time and --token-file are for a running job")
        print_text(f"{_trace_of_capture(saved, output)}\n")
        return
    from monarch.telemetry._export.whole_tables import now_us
    from monarch.telemetry._export.window import write_trace
    from monarch.telemetry._http.profile import default_path
    from monarch.telemetry._http.remote_engine import RemoteEngine

    found = _found(url, token_file)
    engine = RemoteEngine(found)
    # The window is in the clock of the job, which may differ from that of this machine.
    since_us = now_us(engine)
    note(f"recording {found.url} for {seconds:g} s")
    time.sleep(seconds)
    until_us = max(now_us(engine), since_us)
    path = default_path(since_us) if output is None else Path(output)
    for text in write_trace(engine, path, since_us, until_us):
        note(text)
    print_text(f"{path}\n")


def _is_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT


def _trace_of_capture(saved: str, output: str | None) -> Path:
    from monarch.telemetry._export.capture import read
    from monarch.telemetry._export.window import write_rows
    from monarch.telemetry._http.profile import SUFFIX

    tables = read(saved)
    for text in tables.notes:
        note(f"{saved}: {text}")
    path = Path(f"{Path(saved).stem}{SUFFIX}") if output is None else Path(output)
    meta = tables.manifest.meta
    write_rows(path, tables, since_us=meta.since_us, until_us=meta.until_us, offsets_us=meta.offsets_us)
    return path


_port = click.option(
    "--port", type=click.IntRange(0, 65535), default=_PORT, show_default=True, help="The port; the next free one where it is taken, 0: any."
)


@verb("dashboard", "Opens the dashboard of a job.")
@_port
@_token_file
@_addr
def dashboard(port: int, addr: str | None, token_file: str | None) -> int:
    """Serves the dashboard of a running job on this machine until Ctrl-C, and prints its URL.

    The URL has a token behind #, which browsers do not send: keep it to yourself. Exits with 130 after Ctrl-C.
    """
    from monarch.telemetry._dashboard.files import files
    from monarch.telemetry._export.prometheus import exposition
    from monarch.telemetry._export.whole_tables import now_us
    from monarch.telemetry._http.http_client import HttpClient
    from monarch.telemetry._http.parts import Parts
    from monarch.telemetry._http.remote_engine import RemoteEngine
    from monarch.telemetry._http.remote_parts import RemoteActions, RemoteDiagnosis, RemoteSettings, RemoteStacks
    from monarch.telemetry._http.sql_nodes import SqlNodes

    found = _found(addr, token_file)
    engine = RemoteEngine(found)
    # A job that does not answer is an error here, not an empty page later.
    now_us(engine)
    client = HttpClient(found.url, token=found.token)

    def metrics(accept: str) -> tuple[str, bytes]:
        return exposition(lambda sql: engine.ask(sql).table, accept)

    parts = Parts(
        engine,
        SqlNodes(engine),
        RemoteActions(client),
        RemoteStacks(client),
        RemoteSettings(client),
        metrics=metrics,
        files=files().get,
        diagnosis=RemoteDiagnosis(client),
    )
    return _serve(parts, "127.0.0.1", port)


@verb("monarch-dashboard", "Opens the dashboard of a capture.")
@click.option("--db", required=True, metavar="FILE", help="A file of `monarch capture`.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to serve at; one of other machines needs a certificate.")
@_port
@click.option("--tls-cert", type=click.Path(path_type=Path), metavar="FILE", help="The certificate, with those above it, in PEM.")
@click.option("--tls-key", type=click.Path(path_type=Path), metavar="FILE", help="Its key, in PEM.")
def capture_dashboard(db: str, host: str, port: int, tls_cert: Path | None, tls_key: Path | None) -> int:
    """Serves the dashboard of a file of `monarch capture` until Ctrl-C, and prints its URL.

    The URL has a token behind #, which browsers do not send: keep it to yourself. Exits with 130 after Ctrl-C.
    """
    from monarch.telemetry._dashboard.files import files
    from monarch.telemetry._diagnose.collect import of_engine
    from monarch.telemetry._diagnose.diagnosis import diagnosed
    from monarch.telemetry._engine.one_host import OneHost
    from monarch.telemetry._export.capture import read
    from monarch.telemetry._http.parts import Parts
    from monarch.telemetry._http.sql_nodes import SqlNodes

    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("--tls-cert and --tls-key are given together")
    tables = read(db)
    for text in tables.notes:
        note(f"{db}: {text}")
    engine = OneHost(tables)
    manifest = tables.manifest
    # The age of the nodes is that of the capture, not the time of this command.
    made = (manifest.last_us or manifest.made_us) / 1e6

    def diagnosis(seconds: float) -> dict[str, Any]:
        # Statements over a file of this machine have their own limit.
        return diagnosed(of_engine(engine)).to_json()

    parts = Parts(engine, SqlNodes(engine, clock=lambda: made), files=files().get, diagnosis=diagnosis)
    return _serve(parts, host, port, None if tls_cert is None or tls_key is None else (tls_cert, tls_key))


def _serve(parts: Parts, host: str, port: int, tls: tuple[Path, Path] | None = None) -> int:
    """Serves until a signal. The tokens are in a folder of this process alone, so that no command takes this server for a job."""
    from monarch.extension import SignalThread
    from monarch.telemetry._dashboard.files import NOT_BUILT, files
    from monarch.telemetry._http.serve import serve

    if not files().is_built:
        note(f"{NOT_BUILT}; until then only the API is served")
    ended = threading.Event()
    code = INTERRUPTED

    def end(number: int) -> None:
        nonlocal code
        code = INTERRUPTED if number == signal.SIGINT else _TERMINATED
        ended.set()

    folder = Path(tempfile.mkdtemp(prefix="monarch-dashboard-"))
    try:
        with SignalThread((signal.SIGINT, signal.SIGTERM), end):
            serving = serve(parts, folder, [(host, port)], tls=_tls(tls))
            try:
                print_text(f"{serving.dashboard_url()}\n")
                ended.wait()
            finally:
                serving.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return code


def _tls(files: tuple[Path, Path] | None) -> Any:
    if files is None:
        return None
    try:
        from monarch.telemetry._http.server import Tls
    except ImportError:
        # Raised for a missing library, which `serve` reports.
        return None
    return Tls(*files)


def dashboard_main() -> None:
    """Runs the command `monarch-dashboard`."""
    from monarch.extension.cli import run_command

    run_command(capture_dashboard, "monarch-dashboard")
