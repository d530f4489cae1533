"""The hosts of the current job, for the verbs that look at this machine: `monarch doctor`, `ps`, `stack` and `debug`.

Core knows no current job. A wheel that knows it has an entry point of the group `monarch.reach`: a function that runs a verb on its hosts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, cast

import click

from monarch._core.cli.printable import printable
from monarch._core.config.entry_points import BrokenEntry, load_entries
from monarch._core.observe import inspection

GROUP = "monarch.reach"
# The option with which a verb shows its own machine only. Verbs on hosts get it.
HERE = "--here"
# The option with the numbers of the agents that a verb leaves out, because they are already listed.
WITHOUT = "--without"
# The placeholder for the number of this process as a client. The process becomes a client when it queries the hosts.
CLIENT = "{client}"


class Elsewhere(NamedTuple):
    """The output of a verb on another machine. `hosts` are its names in the job; `error` is the reason of a missing answer, or empty."""

    hosts: str
    code: int
    output: str
    error: str = ""


# A function that runs `monarch ARGUMENTS` on each other machine of the current job's hosts. It replaces `{client}` with this process's
# number, sixteen hexadecimal digits. Without a current job it yields nothing.
Reach = Callable[[Sequence[str]], Iterable[Elsewhere]]


def elsewhere(verb: str, *options: str, as_json: bool = False, everything: bool = False) -> list[Elsewhere]:
    """The output of the verb on the other machines of the current job."""
    arguments = [verb, HERE, *options, *(["--json"] if as_json else []), *(["--all"] if everything else [])]
    found: list[Elsewhere] = []
    for entry in load_entries(GROUP):
        if isinstance(entry, BrokenEntry):  # `monarch doctor` names the broken entry
            continue
        try:
            found += entry.value(arguments)
        except Exception as e:  # an error of another wheel: the output of this machine is shown all the same
            found.append(Elsewhere(f"hosts that {entry.wheel} knows", 1, "", f"monarch: {entry.wheel}: {type(e).__name__}: {e}"))
    return found


def without(found: list[inspection.Look]) -> list[str]:
    """The options that make a verb on another machine leave out this command and the agents listed here: a client reports all its hosts."""
    return [word for number in (CLIENT, *sorted(inspection.listed(found))) for word in (WITHOUT, number)]


def debuggers() -> list[str]:
    """Debuggers on the other machines of the current job, one line each. Hosts without an answer are printed to stderr."""
    lines: list[str] = []
    for one in elsewhere("debug"):
        if one.error:
            click.echo(_shown(one.error), err=True)
        else:
            lines += [printable(f"{one.hosts}, {line}") for line in one.output.splitlines()]
    return lines


def show(found: list[Elsewhere]) -> int:
    """Prints the output of each machine under its names, if there is any; gives the largest exit code."""
    for one in found:
        if one.error:  # the error names the host
            click.echo(_shown(one.error), err=True)
        elif one.output:
            click.echo(f"\n=== {printable(one.hosts)}\n{_shown(one.output.rstrip())}")
    return code(found)


def _shown(text: str) -> str:
    """Lines of another machine, escaped: its processes may print any character."""
    return "\n".join(map(printable, text.split("\n")))


def code(found: list[Elsewhere]) -> int:
    """The largest exit code; 1 if a machine has not answered."""
    return max((1 if one.error else one.code for one in found), default=0)


def rows(found: list[Elsewhere]) -> list[dict[str, Any]]:
    """The JSON objects of the verb on each machine, each with `on`, the names of the hosts; an object with `error` for a missing answer."""
    listed: list[dict[str, Any]] = []
    for one in found:
        listed += [{"on": one.hosts, **answer} for answer in ([{"error": one.error}] if one.error else _objects(one.output))]
    return listed


def _objects(output: str) -> list[dict[str, Any]]:
    try:
        answers: Any = json.loads(output)
    except ValueError:
        answers = None
    if isinstance(answers, list) and all(isinstance(answer, dict) for answer in cast("list[Any]", answers)):
        return cast("list[dict[str, Any]]", answers)
    return [{"error": output}]
