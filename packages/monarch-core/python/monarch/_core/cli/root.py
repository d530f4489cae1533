"""The `monarch` command: the verbs of core, and those that other wheels add in the entry-point group `monarch.cli`.

An entry point is named like its verb and refers to a `click.Command`. It is loaded when its verb runs, or when the help lists it. The
help lists an entry point that cannot be loaded as broken; the other verbs work. Only this command loads this module, and so click.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from monarch._core.config.entry_points import BrokenEntry, entry_names, load_entries, load_entry

if TYPE_CHECKING:
    from monarch._core.config.entry_points import LoadedEntry

GROUP = "monarch.cli"
# Texts that other wheels add to the end of the help.
GUIDES = "monarch.guide"
# The exit code that a shell gives a program that Ctrl-C ended.
INTERRUPTED = 130


class Verbs(click.Group):
    """The group of verbs. A verb of core has precedence over a verb of the same name in another wheel."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *entry_names(GROUP)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        found = load_entry(GROUP, cmd_name)
        return _missing(cmd_name) if found is None else _command(found)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for found in load_entries(GUIDES):
            if not isinstance(found, BrokenEntry):  # the verbs of a broken entry are listed as broken, which is enough
                formatter.write(f"\n{found.value}")


def _command(found: LoadedEntry | BrokenEntry) -> click.Command:
    wrong = found
    if not isinstance(found, BrokenEntry):
        if isinstance(found.value, click.Command):
            return found.value
        wrong = found.broken(TypeError("it is no click command"))
    assert isinstance(wrong, BrokenEntry)
    why = f"{wrong.target}: {type(wrong.error).__name__}: {wrong.error}"
    return _refusing(wrong.name, f"the verb '{wrong.name}' of {wrong.wheel} cannot be loaded: {why}\nhint: {wrong.todo}")


def _missing(verb: str) -> click.Command | None:
    """The verb of a wheel of this project that is not installed."""
    from monarch._core.config.wheel import needs_wheel, wheel_of_verb

    wheel = wheel_of_verb(verb)
    return None if wheel is None else _refusing(verb, needs_wheel(f"the verb '{verb}'", wheel))


def _refusing(verb: str, why: str) -> click.Command:
    def refuse() -> None:
        raise click.ClickException(why)

    anything: dict[str, Any] = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
    return click.Command(verb, anything, refuse, short_help="(cannot be loaded)")


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
def root() -> None:
    """Looks at machines and jobs that run Monarch."""


@root.command()
@click.option("--json", "as_json", is_flag=True, help="As one object, name to version.")
def version(as_json: bool) -> None:
    """Prints what is installed, with versions."""
    from monarch._core.observe.doctor import versions

    found = dict([*versions(), ("Python", ".".join(map(str, sys.version_info[:3])))])
    if as_json:
        _print_json(found)
        return
    for name, number in found.items():
        click.echo(f"{name} {number}")


@root.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=Path())
def init(folder: Path) -> None:
    """Writes the files of a first project into FOLDER: a program, its test, and a job.

    FOLDER is made if it is missing; the default is the current one. No file is overwritten.
    """
    from monarch._core.cli.starter import write

    write(folder)


@root.command()
@click.option("--pause", type=click.FloatRange(0, 60), default=1.5, show_default=True, help="Seconds after each line.")
def demo(pause: float) -> int:
    """Shows a mesh of eight processes on this machine: calls, slices, and a kill. Takes half a minute."""
    from monarch._core.cli.demo import run

    return run(pause)


@root.command()
@click.argument("pid", type=int, nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="As a list of objects.")
@click.option("--crash", is_flag=True, help="What processes that were killed, or that failed, did last, from their flight recorders.")
@click.option("--here", is_flag=True, help="Only this machine, not the other hosts of the current job.")
@click.option("--preload", multiple=True, metavar="MODULES", help="Only measures what preloading these modules costs and saves here.")
def doctor(pid: tuple[int, ...], as_json: bool, crash: bool, here: bool, preload: tuple[str, ...]) -> int:
    """Checks this machine and the hosts of the current job; the last lines are the commands to run.

    Exits with 0 if there are no findings, with 1 if there are. With --crash it prints the last events of processes that have failed, of all
    jobs of this user on this machine or of those whose client is PID, and exits with 1 if there are none.
    """
    if crash:
        from monarch._core.cli.crash import report

        return report(pid, as_json)
    if pid:
        raise click.UsageError("PID names a job, which --crash takes; without it the machine is checked")
    if preload:
        from monarch._core.cli.preload_cost import report as measure

        return measure(preload, as_json)
    from monarch._core.cli.examination import report as examine

    return examine(as_json, here)


@root.command()
@click.argument("pid", type=int, nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="All that is known, as a list of objects.")
@click.option("--all", "everything", is_flag=True, help="Also hosts that are lost, and all agents of hosts.")
@click.option("--here", is_flag=True, help="Only this machine, not the other hosts of the current job.")
@click.option("--without", multiple=True, metavar="ID", hidden=True)
def ps(pid: tuple[int, ...], as_json: bool, everything: bool, here: bool, without: tuple[str, ...]) -> int:
    """Lists jobs with their hosts, procs and actors, what runs and since when.

    All jobs of this user on this machine, or those whose client is PID; and agents of hosts that work for none of these. Then the same
    of the other machines of the current job. Exits with 1 if a proc is unresponsive.
    """
    from monarch._core.cli.ps import report

    return report(pid, as_json, everything, here, without)


@root.command()
@click.argument("pid", type=int, nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="All threads, as a list of objects.")
@click.option("--all", "everything", is_flag=True, help="Also threads that wait for work.")
@click.option("--here", is_flag=True, help="Only this machine, not the other hosts of the current job.")
@click.option("--without", multiple=True, metavar="ID", hidden=True)
def stack(pid: tuple[int, ...], as_json: bool, everything: bool, here: bool, without: tuple[str, ...]) -> int:
    """Prints the Python stacks of all procs, equal ones once.

    Also of a proc in which something holds the GIL, and of the other machines of the current job. Exits with 1 if a proc does not
    answer.
    """
    from monarch._core.cli.stack import report

    return report(pid, as_json, everything, here, without)


@root.command()
@click.option("--host", help="Where the job's debugger listens; found by itself for jobs on this machine.")
@click.option("--port", type=click.IntRange(1, 65535), help="Its port; a breakpoint says it where it matters.")
@click.option("--here", is_flag=True, help="Only lists the debuggers of this machine: process, address, port.")
def debug(host: str | None, port: int | None, here: bool) -> int:
    """Attaches to breakpoints in the actors of a job.

    A debugger is in the process of its client: one on a host of the current job is named. Exits with 1 if there is no job to attach to,
    or if it, or another client, ended the connection.
    """
    from monarch._core.cli import reach
    from monarch._core.debug.client import list_servers, run

    if here:
        return list_servers()
    return run(host, port, reach.debuggers)


@root.command()
@click.option("--listen", required=True, metavar="ADDRESS", help="Such as tcp://*:22222 or ipc:///run/user/1000/monarch.")
@click.option("--secret-file", metavar="FILE", help="The job secret, readable by its owner only; else what MONARCH_JOB_SECRET_FILE names.")
@click.option("--insecure", is_flag=True, help="Without encryption: whoever reaches the port can run code.")
@click.option("--publish", metavar="FILE", help="Writes the address there when it listens, as JSON.")
@click.option("--port-tries", type=click.IntRange(1, 1000), default=1, help="So many ports from the given one are tried.")
@click.option(
    "--idle-timeout", type=click.FloatRange(min=0, min_open=True), metavar="S", help="Ends when no client was attached for S seconds."
)
def worker(listen: str, secret_file: str | None, insecure: bool, publish: str | None, port_tries: int, idle_timeout: float | None) -> int:
    """Makes this machine a host of jobs: clients attach to it, and their procs run here.

    Ends with 0 when a client shuts the host down, or after --idle-timeout.
    """
    from monarch._core.cli.worker import run

    return run(listen, secret_file, insecure, publish, port_tries, idle_timeout)


def _print_json(value: Any) -> None:
    import json

    click.echo(json.dumps(value, indent=2))


def main() -> None:
    """Runs the command and exits: 0 fine, 1 findings or an error, 2 usage, 130 after Ctrl-C; verbs of other wheels add their own."""
    # Verbs load the user's own modules. The current folder comes last, so that no file in it hides a library. It may have been removed.
    with suppress(FileNotFoundError):
        sys.path.append(os.getcwd())
    run_command(root, "monarch")


def run_command(command: click.Command, name: str) -> NoReturn:
    """Runs a command of this name and exits with the number that it returns, with 2 after a wrong command line, with 130 after Ctrl-C."""
    try:
        code = command.main(prog_name=name, standalone_mode=False)
    except click.ClickException as e:
        e.show()
        code = e.exit_code
    except click.Abort:
        code = INTERRUPTED
    sys.exit(code if isinstance(code, int) else 0)
