"""Results of reading a process from outside, with the JSON of the admin API: an object whose only name is the kind of the result."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import cast

from monarch.telemetry._stacks.fields import Fields, malformed
from monarch.telemetry._stacks.frames import Thread, pyspy_of_threads, threads_of_pyspy
from monarch.telemetry.errors import TelemetryError

_INSTALL = "pip install 'monarch-telemetry[stacks]' on each host, or set PYSPY_BIN to the path of py-spy"


@dataclass(frozen=True, slots=True)
class Ok:
    """The stacks of process `pid`, read by the program `binary`. `mode` is the capture mode of `pyspy_dumps`, and no part of the JSON."""

    pid: int
    binary: str
    stack_traces: tuple[Thread, ...]
    warnings: tuple[str, ...] = ()
    mode: str = "py-spy"

    def to_json(self) -> dict[str, object]:
        """`{"Ok": {…}}`, with stacks as py-spy prints them."""
        traces = pyspy_of_threads(self.stack_traces, self.pid)
        return {"Ok": {"pid": self.pid, "binary": self.binary, "stack_traces": traces, "warnings": list(self.warnings)}}


@dataclass(frozen=True, slots=True)
class BinaryNotFound:
    """No py-spy at any of the paths in `searched`."""

    searched: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """`{"BinaryNotFound": {…}}`."""
        return {"BinaryNotFound": {"searched": list(self.searched)}}

    def describe(self) -> str:
        """The finding for a person, in one line."""
        return f"py-spy was not found; searched: {', '.join(self.searched)}"

    def error(self) -> TelemetryError:
        """The finding as an exception, with the way to install py-spy."""
        return TelemetryError(self.describe(), hint=_INSTALL)


@dataclass(frozen=True, slots=True)
class Failed:
    """The program `binary` has not read process `pid`. `exit_code` is None where it was ended at its time limit, negative for a signal."""

    pid: int
    binary: str
    exit_code: int | None
    stderr: str

    def to_json(self) -> dict[str, object]:
        """`{"Failed": {…}}`."""
        return {"Failed": {"pid": self.pid, "binary": self.binary, "exit_code": self.exit_code, "stderr": self.stderr}}

    def describe(self) -> str:
        """The finding for a person, with the first line of the program's errors."""
        first = self.stderr.strip().partition("\n")[0].removeprefix("Error: ") or f"exit code {self.exit_code}, no message"
        return f"process {self.pid} could not be read from outside: {first}"

    def error(self) -> TelemetryError:
        """The finding as an exception."""
        text = self.stderr.strip() or f"exit code {self.exit_code}"
        return TelemetryError(f"process {self.pid} could not be read by {self.binary or 'itself'}: {text}")


Result = Ok | BinaryNotFound | Failed


def parse_result(document: str | bytes | object) -> Result:
    """The result in a JSON text or in its object. `TelemetryError` names the field that is malformed."""
    if isinstance(document, str | bytes):
        try:
            document = cast("object", json.loads(document))
        except (ValueError, RecursionError) as e:
            raise TelemetryError(f"malformed stacks: no JSON: {e}") from None
    outer = Fields(document, "")
    if "Ok" in outer:
        ok = Fields(outer.raw("Ok"), "Ok")
        if "stack_traces" not in ok:
            raise malformed("Ok.stack_traces", None, "a list")
        traces = threads_of_pyspy(ok.raw("stack_traces"), "Ok.stack_traces")
        return Ok(ok.number("pid", 32, signed=True), ok.text("binary"), traces, ok.texts("warnings"))
    if "BinaryNotFound" in outer:
        return BinaryNotFound(Fields(outer.raw("BinaryNotFound"), "BinaryNotFound").texts("searched"))
    if "Failed" in outer:
        failed = Fields(outer.raw("Failed"), "Failed")
        code = failed.number_or_none("exit_code", 32, signed=True)
        return Failed(failed.number("pid", 32, signed=True), failed.text("binary"), code, failed.text("stderr"))
    raise TelemetryError("malformed stacks: the document has none of Ok, BinaryNotFound and Failed")
