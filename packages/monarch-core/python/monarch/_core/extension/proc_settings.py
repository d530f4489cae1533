"""The settings of a process and the source of each value, at the request of another process of the job; and the level of its `logging`."""

from __future__ import annotations

import json
import marshal

from monarch._core._native.protocol import GATHER
from monarch._core.call.future import Future, new_future
from monarch._core.config import config
from monarch._core.errors.extension import RequestError
from monarch._core.errors.text import fill
from monarch._core.extension.arguments import check_seconds
from monarch._core.extension.frozen import Frozen
from monarch._core.extension.ids import ProcId
from monarch._core.extension.membership import end_of
from monarch._core.extension.process_check import UNKNOWN, check_exists, checked_id
from monarch._core.extension.request import ask
from monarch._core.process.current import current_process
from monarch._core.process.process import LOG_LEVEL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch._core._native import PendingCall
    from monarch._core.extension.request import Request

REQUEST = "monarch.settings"
# The largest level of `logging`, above all levels of its records.
_HIGHEST = 255


class SettingState(Frozen):
    """A setting of a process; immutable.

    `value` and `default` are JSON values. `source` is `default`, `client` (a value that the client has sent), `configure`,
    `environment` or `override` (of a test); `variable` the environment variable that sets it, preferably the one in effect.
    """

    __slots__ = ("default", "name", "source", "value", "variable")

    name: str
    value: object
    default: object
    source: str
    variable: str

    def __init__(self, name: str, value: object, default: object, source: str, variable: str) -> None:
        self._set(name=name, value=value, default=default, source=source, variable=variable)

    def __repr__(self) -> str:
        return f"SettingState({self.name}={self.value!r} by {self.source})"


def proc_settings(proc: ProcId | int, timeout: float = 5.0) -> list[SettingState]:
    """The settings of a process of the job, those of all its wheels, in the order of their names. The call blocks.

    Values of secrets are among them: a program that displays them masks them. `RequestError` for a process that has ended or is not
    known, `TimeoutError` after `timeout` seconds.
    """
    check_seconds("timeout", timeout, positive=True)
    answer = ask(checked_id(proc, "proc_settings"), REQUEST).get(timeout)
    return [SettingState(*row) for row in json.loads(answer)]


def handle(request: Request) -> bytes:
    """Answers `proc_settings`."""
    rows = [[o.setting.name, o.shown(o.value), o.shown(o.setting.default), o.source, o.variable] for o in config.origins()]
    return json.dumps(sorted(rows, key=lambda row: str(row[0])), default=str).encode()


def set_log_level(proc: ProcId | int, level: int) -> Future[None]:
    """Sets the level of Python's `logging` in a process of the job, as `ProcMesh.logging_option` does. The future is done when the level
    applies.

    `ValueError` for a level outside 0 to 255. The future fails with a `RequestError` if the process has ended or is not known.
    """
    proc = checked_id(proc, "set_log_level")
    if not isinstance(level, int) or not 0 <= level <= _HIGHEST:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"invalid logging level {level!r}: expected 0 to {_HIGHEST}")
    process = current_process()
    call = process.native.cell(GATHER, 1, [proc])
    if check_exists(process, call, proc):
        process.native.request(proc, LOG_LEVEL, marshal.dumps((0, level)), call.slot)
    return new_future(call, lambda c: _level_set(c, proc))


def _level_set(call: PendingCall, proc: ProcId) -> None:
    from monarch._core._native.protocol import FAILED, PROC_ENDED

    result = call.result(0)
    call.set_retrieved()
    assert result is not None
    if result.status == FAILED and bytes(result.raw()) == UNKNOWN:
        raise RequestError(fill("proc_unknown", what="log level of", proc=proc), b"", code="proc_unknown")
    if result.status == PROC_ENDED:
        end = end_of(proc)
        why = "it has ended" if end is None else end.describe()
        raise RequestError(fill("request_proc_ended", name="the log level", proc=proc, why=why), b"", end, code="request_proc_ended")
