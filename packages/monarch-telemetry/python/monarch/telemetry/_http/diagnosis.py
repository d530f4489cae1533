"""The route of a diagnosis. The job is asked when the route is, and never else."""

from __future__ import annotations

import json
from typing import Any

from monarch.telemetry._http.calls import Call, Handler
from monarch.telemetry._http.parts import need


def diagnose(call: Call) -> dict[str, Any]:
    """`GET /v1/diagnose`."""
    found = need(call.parts.diagnosis, "a diagnosis")(call.remaining)
    # Secrets of programs are masked already; the tokens of this server are not known there.
    return json.loads(call.state.masking.json(json.dumps(found)))


HANDLERS: dict[str, Handler] = {"diagnose": diagnose}
