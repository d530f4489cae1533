"""`monarch doctor`, `ps`, `stack` and `debug` on the hosts of the current job: what core's verbs ask for by the group `monarch.reach`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from monarch.extension.cli import Elsewhere

if TYPE_CHECKING:
    from monarch.actor import HostMesh
    from monarch.job._job.job_state import JobState
    from monarch.job._job.launcher import JobStatus

# Seconds for a host to start a process there, and for the verb itself, which waits six for an agent that does not answer.
_HOST_S, _VERB_S = 10.0, 30.0


class _Host(NamedTuple):
    """A host, with the calls to it that are under way."""

    name: str
    command: Any
    machine: Any


def on_hosts(arguments: Sequence[str]) -> Iterator[Elsewhere]:
    """Runs `monarch ARGUMENTS` on each machine of the current job's hosts, without this one, at the same time.

    `{client}` among the arguments stands for the number of this process.
    """
    import monarch.actor
    from monarch.actor import MonarchError
    from monarch.extension import member
    from monarch.job._cli.verb import current_job, job_and_hosts
    from monarch.job.errors import NO_JOB

    try:
        if not current_job().active:
            return
        # A lost host is an answer here.
        monarch.actor.unhandled_fault_hook = _ignore
        job, state = job_and_hosts()
        status = job.status()
    except MonarchError as e:
        if e.code != NO_JOB:
            yield Elsewhere("hosts of the current job", 1, "", f"monarch: {e}")
        return
    me = f"{int(member().proc):016x}"
    yield from _ask(state, status, [me if word == "{client}" else word for word in arguments])


def _ask(state: JobState, status: JobStatus, arguments: list[str]) -> Iterator[Elsewhere]:
    from monarch.actor import MonarchError
    from monarch.job._client.exec import chosen
    from monarch.job._host.monarch_command import machine

    # A host that the scheduler reports as lost, or that has no address yet, gets no request. A job without a scheduler has addresses only.
    absent = {
        (host.mesh, host.rank): host for host in status.hosts if host.phase == "lost" or (host.phase == "waiting" and not host.address)
    }
    hosts: list[_Host] = []
    lost: list[Elsewhere] = []
    for name in state:
        mesh = state[name]
        for rank in range(len(mesh)):
            host = f"{name}[{rank}]"
            if (away := absent.get((name, rank))) is not None:
                lost.append(_lost(host, f"the host is {away.phase}{f': {away.detail}' if away.detail else ''}"))
                continue
            point = chosen(mesh.sizes, rank, None)
            try:
                # Each host is queried separately: one that cannot be attached hides no other one.
                command = _commands(mesh.slice(**point) if point else mesh, arguments[0])
                hosts.append(_Host(host, command, command.machine.call_one()))
            except MonarchError as e:
                lost.append(_lost(host, str(e)))
    here, end = machine(), time.monotonic() + _HOST_S
    running: dict[str, tuple[list[str], Any]] = {}
    for host in hosts:
        try:
            where = host.machine.get(max(end - time.monotonic(), 0.001))
        except (MonarchError, TimeoutError) as e:
            lost.append(_lost(host.name, _words(e, _HOST_S)))
            continue
        if where in running:
            running[where][0].append(host.name)
        elif where != here:
            running[where] = ([host.name], host.command.run.call_one(arguments, _VERB_S))
    end = time.monotonic() + _VERB_S + _HOST_S
    for names, answer in running.values():
        try:
            result = answer.get(max(end - time.monotonic(), 0.001))
        except (MonarchError, TimeoutError) as e:
            yield _lost(", ".join(names), _words(e, _VERB_S + _HOST_S))
        else:
            error = f"monarch: {names[0]}: {result.error}" if result.error else ""
            yield Elsewhere(", ".join(names), result.code, result.output, error)
    yield from lost


def _lost(names: str, why: str) -> Elsewhere:
    return Elsewhere(names, 1, "", f"monarch: {names}: {why}")


def _commands(mesh: HostMesh, verb: str) -> Any:
    """An actor on the host of the mesh."""
    from monarch.job._host.monarch_command import MonarchCommand

    # The verb lists this proc too, so its name is descriptive.
    return mesh.spawn_procs(name=f"monarch-{verb}").spawn("command", MonarchCommand)


def _ignore(failure: object) -> None:
    """The call to a lost host fails by itself."""


def _words(error: Exception, seconds: float) -> str:
    return f"no answer within {seconds:g} s" if isinstance(error, TimeoutError) else str(error)
