"""Routes of stacks: merged stacks of the job, stacks of a proc, dumps and profiles."""

from __future__ import annotations

import re
from typing import Any

from monarch.telemetry._http.calls import Call, Reply
from monarch.telemetry._http.models import PyspyAnswer
from monarch.telemetry._http.parts import Stacks, need
from monarch.telemetry._http.problems import Problem
from monarch.telemetry._http.routes import SVG
from monarch.telemetry.errors import TelemetryError

MOST_SECONDS, MOST_RATE = 300.0, 1000
_DUMP_ID = re.compile(r"[A-Za-z0-9._\-]{1,128}")


def _stacks(call: Call) -> Stacks:
    return need(call.parts.stacks, "stacks")


def proc_of(call: Call, reference: str) -> int:
    """The number of the proc. `Problem` 404 for a reference to anything else."""
    found = call.parts.nodes.proc_id(reference)
    if found is None:
        raise Problem.not_found(f"{reference!r} is no reference of a proc")
    return found


def merged(call: Call) -> dict[str, Any]:
    """`GET /v1/stacks`."""
    wanted = call.parameters
    if wanted.get("locals"):
        call.need_admin("stacks with local variables")
    return _stacks(call).merged(
        wanted.get("mesh"), native=wanted.get("native", False), locals=wanted.get("locals", False), timeout=call.remaining
    )


def read(call: Call) -> PyspyAnswer:
    """`GET /v1/pyspy/{proc}`."""
    return _stacks(call).read(proc_of(call, call.path["proc"]), timeout=call.remaining)


def dump(call: Call) -> dict[str, Any]:
    """`POST /v1/pyspy_dump/{proc}`."""
    reference = call.path["proc"]
    return {"dump_id": _stacks(call).store(proc_of(call, reference), reference, timeout=call.remaining)}


def capture(call: Call) -> dict[str, Any]:
    """`POST /api/pyspy/capture`."""
    reference = call.body["proc_ref"]
    return {"dump_id": _stacks(call).store(proc_of(call, reference), reference, timeout=call.remaining)}


def keep(call: Call) -> dict[str, Any]:
    """`POST /api/pyspy_dump`."""
    name = call.body["dump_id"]
    if not _DUMP_ID.fullmatch(name):
        raise Problem.bad_request("dump_id has letters, digits, dots, dashes and underscores, at most 128")
    from monarch.telemetry._stacks.result import Ok, parse_result

    try:
        result = parse_result(call.body["pyspy_result_json"])
    except TelemetryError as error:
        raise Problem.bad_request(f"pyspy_result_json: {error}") from None
    if not isinstance(result, Ok):
        raise Problem.bad_request(f"pyspy_result_json has no stacks: {result.describe()}")
    _stacks(call).keep(name, call.body["proc_ref"], result)
    return {"dump_id": name}


def profile(call: Call) -> Reply:
    """`POST /v1/pyspy_profile_svg/{proc}`."""
    body = call.body
    seconds, rate = body.get("duration_s", 10.0), body.get("rate_hz", 100)
    if not 0 < seconds <= MOST_SECONDS:
        raise Problem.bad_request(f"duration_s is above 0 and at most {MOST_SECONDS:g}")
    if not 1 <= rate <= MOST_RATE:
        raise Problem.bad_request(f"rate_hz is from 1 to {MOST_RATE}")
    svg = _stacks(call).profile_svg(
        proc_of(call, call.path["proc"]),
        duration_s=seconds,
        rate_hz=rate,
        native=body.get("native", False),
        threads=body.get("threads", False),
        nonblocking=body.get("nonblocking", False),
        timeout=call.remaining,
    )
    return Reply(svg, SVG)


HANDLERS = {
    "stacks": merged,
    "pyspy": read,
    "pyspy_dump": dump,
    "pyspy_profile_svg": profile,
    "api_pyspy_capture": capture,
    "api_pyspy_dump": keep,
}
