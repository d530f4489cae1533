"""The verb `doctor`: runs the checks of this machine, of other wheels and of the current job's hosts at the same time."""

from __future__ import annotations

import json
from threading import Thread

import click

from monarch._core.cli import reach
from monarch._core.observe import doctor
from monarch._core.observe.wheel_checks import Wheels


def report(as_json: bool, here: bool) -> int:
    """Prints the findings; gives the exit code."""
    _import_common()
    # This comes before the checks: it forks, and the check of a proc starts threads.
    wheels = Wheels()
    lines: list[doctor.Line] = []
    there: list[reach.Elsewhere] = []

    def show(line: doctor.Line) -> None:
        lines.append(line)
        if not as_json:
            click.echo(doctor.as_text(line))

    for line in doctor.examine():
        show(line)
    asked = Thread(target=lambda: there.extend(reach.elsewhere("doctor", as_json=as_json)), daemon=True)
    if not here:
        asked.start()
    for line in wheels.lines():
        show(line)
    if not as_json:
        for text in doctor.remedies(lines):
            click.echo(text)
    if not here:
        asked.join()
    code = 1 if any(line.is_finding for line in lines) else 0
    if as_json:
        click.echo(json.dumps(doctor.as_json(lines) + reach.rows(there), indent=2))
        return max(code, reach.code(there))
    return max(code, reach.show(there))


def _import_common() -> None:
    """Imports the modules of several wheels and of the check of a proc, once before the forks in place of once in each child."""
    import asyncio
    import ssl

    from monarch._core.extension import recording
    from monarch._core.hosts import here
    from monarch._core.start import client_runtime

    del asyncio, ssl, client_runtime, here, recording
