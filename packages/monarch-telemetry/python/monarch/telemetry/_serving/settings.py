"""The settings of procs: the collector of their host asks them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from monarch.telemetry._http.models import ConfigEntry
from monarch.telemetry._http.problems import Problem
from monarch.telemetry._serving.procs import Procs

# The share of the time of a request for the proc: the collector answers before the request ends.
_SHARE = 0.8


class JobSettings:
    """See `monarch.telemetry._http.parts.Settings`."""

    def __init__(self, procs: Procs) -> None:
        self._procs = procs

    def config(self, proc_id: int, *, timeout: float) -> Sequence[ConfigEntry]:
        found = json.loads(self._procs.ask(proc_id, "settings", proc_id, timeout * _SHARE, timeout=timeout))
        if isinstance(found, str):
            raise Problem.unavailable(f"proc {proc_id} does not give its settings: {found}")
        return [
            {
                "name": name,
                "value": value,
                "default_value": default,
                "source": source,
                "changed_from_default": value != default,
                "env_var": variable,
            }
            for name, value, default, source, variable in found
        ]
