"""Routes that change a job: each is an action of the protocol `Actions`."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial

from monarch.telemetry._http.calls import Call, Handler
from monarch.telemetry._http.models import ActionAnswer
from monarch.telemetry._http.parts import Actions, need
from monarch.telemetry._http.problems import Problem
from monarch.telemetry._http.stacks import proc_of

LEVELS = ("trace", "debug", "info", "warn", "error", "off")
# The names in the `logging` module of Python.
_OTHER_NAMES = {"warning": "warn", "critical": "error"}
ALL = "*"
# The fields of an action in addition to the target.
_FIELDS = {"stop_mesh": ("reason",), "kill_job": ("reason",), "signal_proc": ("signal",), "set_log_level": ("level",)}


def _stop_mesh(actions: Actions, call: Call) -> ActionAnswer:
    return actions.stop_mesh(call.body["target"], reason=call.body.get("reason"))


def _kill_proc(actions: Actions, call: Call) -> ActionAnswer:
    return actions.kill_proc(proc_of(call, call.body["target"]))


def _signal_proc(actions: Actions, call: Call) -> ActionAnswer:
    return actions.signal_proc(proc_of(call, call.body["target"]), _signal(call.body.get("signal")))


def _signal(given: int | str | None) -> int:
    """A signal by number or name."""
    if given is None:
        raise Problem.bad_request("signal_proc needs the field 'signal'")
    try:
        if isinstance(given, int):
            return signal.Signals(given).value
        name = given.upper()
        return signal.Signals[name if name.startswith("SIG") else f"SIG{name}"].value
    except (ValueError, KeyError):
        raise Problem.bad_request(f"{given!r} is no signal") from None


def _heal_job(actions: Actions, call: Call) -> ActionAnswer:
    return actions.heal_job(call.body["target"])


def _kill_job(actions: Actions, call: Call) -> ActionAnswer:
    return actions.kill_job(call.body["target"], reason=call.body.get("reason"))


def _set_log_level(actions: Actions, call: Call) -> ActionAnswer:
    given = call.body.get("level", "").lower()
    level = _OTHER_NAMES.get(given, given)
    if level not in LEVELS:
        raise Problem.bad_request(f"level is one of {', '.join(LEVELS)}")
    target = call.body["target"]
    return actions.set_log_level(None if target == ALL else proc_of(call, target), level)


def _dump_state(actions: Actions, call: Call) -> ActionAnswer:
    target = call.body["target"]
    return actions.dump_state(None if target == ALL else proc_of(call, target))


def _cancel_query(actions: Actions, call: Call) -> ActionAnswer:
    return actions.cancel_query(call.body["target"])


def _run(name: str, action: Callable[[Actions, Call], ActionAnswer], call: Call) -> ActionAnswer:
    for field in call.body:
        if field != "target" and field not in _FIELDS.get(name, ()):
            raise Problem.bad_request(f"{name} has no field {field!r}")
    return action(need(call.parts.actions, "actions"), call)


_ACTIONS: dict[str, Callable[[Actions, Call], ActionAnswer]] = {
    "stop_mesh": _stop_mesh,
    "kill_proc": _kill_proc,
    "signal_proc": _signal_proc,
    "heal_job": _heal_job,
    "kill_job": _kill_job,
    "set_log_level": _set_log_level,
    "dump_state": _dump_state,
    "cancel_query": _cancel_query,
}
HANDLERS: dict[str, Handler] = {f"action_{name}": partial(_run, name, action) for name, action in _ACTIONS.items()}
