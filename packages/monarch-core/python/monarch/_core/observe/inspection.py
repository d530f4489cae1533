"""Inspection of jobs: those of this user on this machine, from outside; and this process, from inside."""

from __future__ import annotations

import json
import os
import sys
from threading import Thread
from typing import Any, NamedTuple

from monarch._core.process import stacks
from monarch._core.process.stopped import why_stopped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

# The requests to an agent, numbered as in native code.
STATE, STACKS = 0, 1
# Seconds to wait for an agent, which answers within two seconds whatever its procs do.
_TIMEOUT = 6.0


class Look(NamedTuple):
    """A job and its answer, or the reason of a missing answer. `pid` is that of its client, or of the agent of a host, if it is known."""

    agent: int
    answer: dict[str, Any] | None
    error: str | None
    pid: int | None = None

    def describe(self) -> str:
        """For a job without an answer: the process and the reason."""
        if self.pid is None:
            return f"a job that cannot be looked into: {self.error}"
        return f"process {self.pid} is the client of a job, or the agent of a host, and cannot be looked into: {self.error}"


def agents() -> list[int]:
    """The agents that listen on this machine, maybe including those of other users."""
    from monarch._core import _native

    return _native.agents()


def look(what: int, timeout: float = _TIMEOUT, asked: Collection[int] | None = None) -> list[Look]:
    """Queries all jobs of this user on this machine, at the same time: a job that does not answer delays no other one.

    `asked`: only these agents.
    """
    found: list[Look] = []

    def ask(agent: int) -> None:
        one = _look_at(agent, what, timeout)
        if one is not None:
            found.append(one)

    threads = [Thread(target=ask, args=(agent,)) for agent in agents() if asked is None or agent in asked]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if any(one.answer is None for one in found):
        # A job that ended during the query is left out.
        there = set(agents())
        found = [one for one in found if one.answer is not None or one.agent in there]
    return sorted(found, key=lambda one: one.answer["agent_pid"] if one.answer else 0)


def _look_at(agent: int, what: int, timeout: float) -> Look | None:
    """Queries one agent. None for an agent of another user, which refuses this process."""
    from monarch._core._native import agent_pid, inspect_agent
    from monarch._core.process.identity import new_uid

    pid = agent_pid(agent)
    if stopped := pid and why_stopped(pid):
        # The process cannot answer before another one continues it.
        return Look(agent, None, stopped, pid)
    try:
        answer = json.loads(inspect_agent(agent, new_uid(), what, timeout))
    except PermissionError:
        return None
    except OSError as e:
        return Look(agent, None, (pid and why_stopped(pid)) or str(e), pid)
    return Look(agent, answer, None, answer["agent_pid"])


def agents_of_process(pid: int) -> set[int]:
    """The agents in the process of this pid, as this process numbers processes; no agent has to answer."""
    from monarch._core import _native

    return {agent for agent in agents() if _native.agent_pid(agent) == pid}


def is_agent(answer: dict[str, Any]) -> bool:
    """Whether the agent is that of a host, to which clients attach, and not itself a client."""
    return bool(answer["procs"]) and answer["procs"][0]["name"] == "agent"


class OtherHost(NamedTuple):
    """Another host of a job, and its agent's answer about the job's procs there, or the reason of a missing answer."""

    host: str
    state: str
    answer: dict[str, Any] | None
    error: str | None


def others(answer: dict[str, Any]) -> list[OtherHost]:
    """The hosts of a client, besides its own; empty for jobs of other releases without this field."""
    return [OtherHost(one["host"], one["state"], one["answer"], one["error"]) for one in answer.get("hosts", [])]


def without_listed_agents(found: list[Look], everything: bool = False) -> list[Look]:
    """Jobs, then agents of hosts; agents that a job lists only with `everything`."""
    jobs = [one for one in found if one.answer is None or not is_agent(one.answer)]
    hosts = {other.answer["agent_pid"] for one in jobs for other in others(one.answer or {}) if other.answer is not None}
    agents = [one for one in found if one.answer is not None and is_agent(one.answer)]
    return jobs + [one for one in agents if everything or (one.answer or {})["agent_pid"] not in hosts]


def listed(found: list[Look]) -> set[str]:
    """The numbers of the agents that have answered, or that a client has reported.

    They are the agents' own identities, which differ from the ids that a job has for its hosts.
    """
    answers = [one.answer for one in found if one.answer is not None]
    of_jobs = [other.answer for answer in answers for other in others(answer) if other.answer is not None]
    return {f"{one.agent:016x}" for one in found if one.answer is not None} | {number for one in of_jobs if (number := agent_of(one))}


def agent_of(answer: dict[str, Any]) -> str:
    """The number of the agent that has answered; "" if the answer lacks it."""
    return str(answer["procs"][0]["uid"]) if answer["procs"] else ""


def parts(one: Look) -> list[dict[str, Any] | None]:
    """The answers of the hosts of a job. Lost hosts are left out: the job's owner has been notified of them."""
    return [None] if one.answer is None else [one.answer, *(other.answer for other in others(one.answer) if other.state == "joined")]


def actors_of(proc: dict[str, Any]) -> list[dict[str, Any]]:
    """The actors of a proc, from its answer; none without an answer."""
    return proc["answer"]["actors"] if proc["answer"] else []


def command_of(pid: int) -> str:
    """The command line of a process."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as f:
            return " ".join(word.decode(errors="replace") for word in f.read().split(b"\0") if word)
    except OSError:
        return "(ended)"


def dump_state() -> str:
    """The state of this process and, in the client, of all its procs, as JSON for a bug report.

    Contains versions, settings, existing objects and running calls, the stacks of this process, and the variables named `MONARCH_*`; no
    arguments of calls, no other variables. Secrets are masked by their names and forms, and values of secret variables at any place. Takes
    at most two seconds longer than the slowest part; raises nothing in a process that has no runtime.
    """
    from monarch._core.config import config
    from monarch._core.observe.doctor import versions
    from monarch._core.observe.masking import Masking
    from monarch._core.process.current import known_process

    process = known_process()
    found: dict[str, Any] = {
        "pid": os.getpid(),
        "python": sys.version,
        "versions": dict(versions()),
        "argv": sys.argv,
        "settings": {name: str(value) for name, value in config.get_global_config().items()},
        "threads": stacks.threads(),
    }
    if process is not None:
        found["process"] = json.loads(process.native.state())
        found["owned"] = [
            {
                "name": mesh.info.name,
                "class": mesh.info.class_name or None,
                "unique_name": mesh.info.unique_name,
                "owner": mesh.owner.display,
                "extent": str(mesh.info.extent),
                "failed": {rank: str(failure) for rank, failure in mesh.info.failed.items()},
                "stopped": mesh.info.stopped,
            }
            for mesh in list(process.meshes.owned.values())
        ]
        if process.is_client and not process.closed:
            cell = process.native.inspect(STATE)
            if cell.wait(0, _TIMEOUT):
                result = cell.results()[0]
                found["host"] = json.loads(result.raw()) if result is not None else None
    masking = Masking.of_environment(os.environ)
    masked = json.loads(masking.json(json.dumps(found, default=str)))
    variables = {name: masking.named(name, value) for name, value in sorted(os.environ.items()) if name.startswith("MONARCH_")}
    return json.dumps({**masked, "environment": variables}, indent=2)
