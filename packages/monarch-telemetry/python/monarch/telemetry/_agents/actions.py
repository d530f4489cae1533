"""What an agent may do beside looking, where its server was started with `--allow-actions`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from monarch.telemetry._agents.parameters import Parameter


class Done(NamedTuple):
    """The outcome of an action; `detail` is a text for people."""

    done: bool
    detail: str


class Actions(Protocol):
    """Acts on the job. Any thread."""

    def act(self, action: str, target: str, arguments: Mapping[str, object]) -> Done:
        """Runs the action of this name: `target` is of the kind that the action has in `ACTIONS`, `arguments` are its parameters by name.

        `TelemetryError` where it cannot be run, or where the token does not allow it.
        """
        ...


_MESH = "the name of the mesh"
_PROC = "the number of the proc (procs.proc_id)"
_JOB = "the name of the job (job_events.job)"
_REASON = Parameter("reason", "string", "why, for those who look at the job later", required=False)


class Action(NamedTuple):
    """An action by its name; `target` is what its target is."""

    name: str
    what: str
    target: str
    parameters: tuple[Parameter, ...] = ()


ACTIONS = (
    Action("stop_mesh", "Stops a mesh of actors or procs in order.", _MESH, (_REASON,)),
    Action("kill_proc", "Kills a proc at once, with what runs in it.", _PROC),
    Action(
        "signal_proc",
        "Sends a signal to the process of a proc.",
        _PROC,
        (Parameter("signal", "string", "the name or number of the signal, such as SIGUSR1"),),
    ),
    Action("heal_job", "Replaces the lost hosts of a job.", _JOB),
    Action("kill_job", "Ends a whole job.", _JOB, (_REASON,)),
    Action(
        "set_log_level",
        "Sets the log level of a proc, or of all.",
        f"{_PROC}, or * for all",
        (Parameter("level", "string", "DEBUG, INFO, WARNING, ERROR or CRITICAL"),),
    ),
    Action("dump_state", "Writes the state of a proc to a file, whose path is in the answer.", f"{_PROC}, or * for the whole job"),
    Action("cancel_query", "Cancels a query in progress.", "the number of the query"),
)
