"""The jobs of this user on this machine, as `monarch ps --json` and `monarch stack --json` show them, for wheels that explain a job."""

from __future__ import annotations

from threading import Thread

from monarch._core.extension.arguments import check_seconds
from monarch._core.observe import inspection

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class InspectedJob:
    """A job, or an agent of a host whose job has no client on this machine, with its answers of one moment.

    `state` and `stacks` are objects of `monarch ps --json` and `monarch stack --json` (docs/inspection.md), None without an answer; `error`
    is the reason then. `pid` is that of the client or agent, and `number` the identity of that process (`Member.proc` in a client).
    """

    __slots__ = ("command", "error", "number", "pid", "stacks", "state")

    def __init__(
        self, number: int, pid: int | None, state: dict[str, Any] | None, stacks: dict[str, Any] | None, error: str | None
    ) -> None:
        self.number = number
        self.pid = pid
        self.command = "" if pid is None else inspection.command_of(pid)
        self.state = state
        self.stacks = stacks
        self.error = error

    @property
    def is_agent(self) -> bool:
        """Whether this is the agent of a host and not a client."""
        return self.state is not None and inspection.is_agent(self.state)


def inspect_jobs(timeout: float = 6.0, *, pid: int | None = None, number: int | None = None) -> list[InspectedJob]:
    """Inspects all jobs of this user on this machine; then the agents of hosts that no such job lists. The call blocks.

    A job answers within two seconds, whatever its procs do; `timeout` is in seconds. With `number` only the job of this
    `InspectedJob.number` is inspected, with `pid` only that of this process; if no agent has this pid, as in a container, all of them.
    """
    check_seconds("timeout", timeout, positive=True)
    asked = {number} if number is not None else (inspection.agents_of_process(pid) or None) if pid is not None else None
    stacks: list[inspection.Look] = []
    looking = Thread(target=lambda: stacks.extend(inspection.look(inspection.STACKS, timeout, asked)))
    looking.start()
    states = inspection.look(inspection.STATE, timeout, asked)
    looking.join()
    by_agent = {one.agent: one.answer for one in stacks}
    return [
        InspectedJob(one.agent, one.pid, one.answer, by_agent.get(one.agent), one.error) for one in inspection.without_listed_agents(states)
    ]
