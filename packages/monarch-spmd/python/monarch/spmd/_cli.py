"""`monarch run [OPTIONS] SCRIPT|-m MODULE ARGS...`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from monarch.spmd.torchrun import LaunchSpec

INTERRUPTED = 130
# The exit code for other failures. A killed rank counts as 128 plus its signal.
_OTHER = 1
# Entry points of other wheels: functions that return hosts, with the name of their job, or None.
GROUP = "monarch.run"
_HELP = """Runs a program on every rank, as torchrun would: on the hosts of the current job, without one on this machine.

    Options are those of torchrun: --nproc-per-node, --nnodes, --max-restarts, -m, --no-python, --log-dir, -r, -t and so on. Rendezvous is
    part of the run, so the options for it change nothing. Ranks print here, each line behind [rank].

    The exit code is 0 where all ranks succeed, else that of the first rank that failed: 128 plus the number of a signal. 2 stands for an
    option that is wrong, 130 for Ctrl-C, which ends the ranks.

    \b
    For agents:
      monarch run --nproc-per-node=4 train.py --lr 0.1
      Job reuse: `monarch apply MODULE.JOB` reserves the hosts once; run as often as you like, and `monarch kill` at the end.
      A failure names the path of its record; the same launch again: monarch run --replay FILE
    """


@click.command(
    "run",
    short_help="Runs a torchrun program on every rank.",
    help=_HELP,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option("--job", "where", flag_value="job", help="On the current job; an error where there is none.")
@click.option("--local", "where", flag_value="local", help="On this machine, also where there is a current job.")
@click.option("--replay", type=click.Path(path_type=Path), metavar="FILE", help="Run the launch of a failure.json again, on this machine.")
@click.option("--preload", multiple=True, metavar="MODULES", help="Modules that each host imports once for all ranks, as torch,numpy.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[TORCHRUN OPTIONS] SCRIPT|-m MODULE ARGS...")
def run(where: str | None, replay: Path | None, preload: tuple[str, ...], words: tuple[str, ...]) -> int:
    from monarch.actor import MonarchError
    from monarch.spmd.errors import LaunchArgumentError, SPMDFailure
    from monarch.spmd.modules import checked

    try:
        try:
            modules = checked([name for text in preload for name in text.replace(",", " ").split()]) if preload else None
        except ValueError as error:
            raise click.UsageError(str(error)) from None
        if replay is not None:
            if words:
                raise click.UsageError(f"--replay takes its command from the file, and {' '.join(words)!r} is given as well")
            return _replay(replay, modules)
        return _run(["torchrun", *words], where, modules)
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except LaunchArgumentError as error:
        raise click.UsageError(str(error)) from None
    except SPMDFailure as error:
        click.echo(f"monarch: {error}", err=True)
        return _code(error.exitcode)
    except MonarchError as error:
        click.echo(f"monarch: {error}", err=True)
        return _OTHER


def _run(command: list[str], where: str | None, modules: tuple[str, ...] | None) -> int:
    from monarch.spmd.errors import SPMDError
    from monarch.spmd.launch import launch_of
    from monarch.spmd.spmd_run import begin, wait

    spec = launch_of(command, os.environ)
    _report_needless(spec)
    found = None if where == "local" else _current_hosts()
    if found is None:
        if where == "job":
            raise SPMDError("there is no current job", hint="`monarch apply MODULE.ATTRIBUTE` makes one")
        return _here(command, spec, {}, os.getcwd(), modules)
    click.echo(f"monarch: on {found.hosts.extent.nelements} hosts of the {found.title}", err=True)
    wait(begin(found.hosts, command, spec, workdir=found.workdir, preload=modules))
    return 0


def _current_hosts() -> Any:
    from monarch.extension import BrokenEntry, entry_names, load_entry

    for name in entry_names(GROUP):
        entry = load_entry(GROUP, name)
        # `monarch doctor` names a broken entry point.
        if entry is not None and not isinstance(entry, BrokenEntry) and (found := entry.value()) is not None:
            return found
    return None


def _replay(path: Path, modules: tuple[str, ...] | None) -> int:
    from monarch.spmd.errors import SPMDError
    from monarch.spmd.launch import launch_of, on_one_host
    from monarch.spmd.record import read

    found = read(path)
    if found.workdir is not None and not os.path.isdir(found.workdir):
        raise SPMDError(f"{path}: the directory of the launch, {found.workdir}, is not on this machine")
    spec = on_one_host(launch_of(found.command), found.hosts * found.per_host)
    return _here(found.command, spec, found.env, found.workdir, modules)


def _here(command: list[str], spec: LaunchSpec, env: dict[str, str], workdir: str | None, modules: tuple[str, ...] | None) -> int:
    from monarch.actor import this_host
    from monarch.spmd.spmd_run import begin, wait

    wait(begin(this_host(), command, spec, env=env, workdir=workdir, preload=modules))
    return 0


def _report_needless(spec: LaunchSpec) -> None:
    import logging

    if spec.needless:
        logging.getLogger("monarch.spmd").info("needless here: %s", ", ".join(spec.needless))


def _code(exitcode: int | None) -> int:
    if exitcode is None or exitcode == 0:
        return _OTHER
    return 128 - exitcode if exitcode < 0 else exitcode
