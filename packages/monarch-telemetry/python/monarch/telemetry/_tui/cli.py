"""The verb `tui` of the command `monarch`, and the command `monarch-tui`.

The libraries are imported inside functions: the help of `monarch` loads this module.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from monarch.telemetry._tui.client import Where

_FAILED, _NO_JOB, _INTERRUPTED = 1, 3, 130
_THEMES = ("nord", "doom-nord-light")
_LANGUAGES = ("en", "zh")
# The least and the most milliseconds between two refreshes.
_LEAST_MS, _MOST_MS = 200, 3_600_000


@click.command("tui", short_help="Shows a running job in the terminal.")
@click.option("--addr", "-a", metavar="URL", help="The admin URL of a job, or its host; by default the current job.")
@click.option("--admin-port", type=click.IntRange(1, 65535), metavar="PORT", help="The port of --addr; without --addr, of this machine.")
@click.option("--refresh-ms", type=click.IntRange(_LEAST_MS, _MOST_MS), default=2000, show_default=True, help="Time between refreshes.")
@click.option("--theme", type=click.Choice(_THEMES), default="nord", show_default=True, help="The colours.")
@click.option("--lang", type=click.Choice(_LANGUAGES), default="en", show_default=True, help="The language.")
@click.option("--tls-ca", metavar="FILE", help="Certificates, in PEM, that the certificate of the server is checked with.")
@click.option("--tls-cert", metavar="FILE", help="The certificate of this client, in PEM.")
@click.option("--tls-key", metavar="FILE", help="The key of --tls-cert, in PEM.")
@click.option("--plaintext", is_flag=True, help="Without TLS.")
@click.option("--diagnose", "as_diagnosis", is_flag=True, help="Print a JSON report of all checks; exit with 1 where one fails.")
@click.option("--token-file", metavar="FILE", help="The file with the token for --addr.")
def tui(
    addr: str | None,
    admin_port: int | None,
    refresh_ms: int,
    theme: str,
    lang: str,
    tls_ca: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    plaintext: bool,
    as_diagnosis: bool,
    token_file: str | None,
) -> int:
    """Shows hosts, procs and actors of a running job, their logs, metrics and stacks, and acts on them. Press ? for the keys.

    Exits with 0; with 3 where no job is found, and with 1 where the job cannot be shown. --diagnose exits with 0 or 1.
    """
    from monarch.telemetry._tui.client import Where

    where = Where(addr, admin_port, token_file, tls_ca, tls_cert, tls_key, plaintext)
    try:
        return _diagnose(where) if as_diagnosis else _show(where, refresh_ms, theme, lang)
    except (KeyboardInterrupt, click.Abort):
        return _INTERRUPTED


def main() -> None:
    """Runs the command `monarch-tui`."""
    from monarch.extension.cli import run_command

    run_command(tui, "monarch-tui")


def _diagnose(where: Where) -> int:
    import json

    from monarch.telemetry._tui.api import Api
    from monarch.telemetry._tui.client import connect
    from monarch.telemetry._tui.diagnose import Check, checks, report
    from monarch.telemetry.errors import TelemetryError

    try:
        api = Api(connect(where))
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    except (TelemetryError, OSError) as error:
        found: dict[str, Any] = report(where.addr or "", [Check("admin", "find", "where the job is", "fail", 0.0, str(error))])
    else:
        found = report(api.url, checks(api))
    click.echo(json.dumps(found, indent=2))
    return 0 if found["ok"] else _FAILED


def _show(where: Where, refresh_ms: int, theme: str, lang: Any) -> int:
    try:
        from monarch.telemetry._tui.tui import Tui
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("textual", "rich"):
            raise
        return _note(f"the terminal UI needs {error.name}\nhint: pip install 'monarch-telemetry[tui]'")
    from monarch.telemetry._tui.api import Api
    from monarch.telemetry._tui.client import connect
    from monarch.telemetry._tui.texts import Texts
    from monarch.telemetry.errors import TelemetryError

    if not sys.stdin.isatty() or not sys.stdout.isatty():
        return _note("the terminal UI needs a terminal\nhint: --diagnose prints a report, monarch query answers SQL")
    try:
        api = Api(connect(where))
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    except (TelemetryError, OSError) as error:
        _note(str(error))
        return _NO_JOB if getattr(error, "code", None) == "no_such_job" else _FAILED
    app = Tui(api, Texts(lang), theme=theme, seconds=refresh_ms / 1000)
    app.run()
    return app.return_code or 0


def _note(text: str) -> int:
    from monarch.telemetry._queries.values import printable

    lines = "\n".join(map(printable, text.split("\n")))
    click.echo(f"monarch: {lines}", err=True)
    return _FAILED
