"""Actions on the job of a server, over its HTTP API."""

from __future__ import annotations

import json
from collections.abc import Mapping

from monarch.telemetry._agents.actions import Done
from monarch.telemetry._http.http_client import HttpClient
from monarch.telemetry._http.references import Reference
from monarch.telemetry._http.remote_engine import find

# Seconds for one action: healing a job takes the longest.
_SECONDS = 130.0
# Actions with a proc as their target; agents name a proc by its number, the API names it by its reference.
_OF_PROCS = ("kill_proc", "signal_proc", "set_log_level", "dump_state")


class RemoteActions:
    """Acts on the job of a server."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client

    def act(self, action: str, target: str, arguments: Mapping[str, object]) -> Done:
        """`POST /v1/actions/<action>`."""
        if action in _OF_PROCS and target.isascii() and target.isdecimal():
            target = str(Reference("proc", int(target)))
        answer = json.loads(self._client.post(f"/v1/actions/{action}", {"target": target, **arguments}, _SECONDS))
        return Done(bool(answer["done"]), str(answer["detail"]))


def find_actions(addr: str | None, token_file: str | None) -> RemoteActions:
    """The actions of the server that `find` gives."""
    found = find(addr, token_file)
    return RemoteActions(HttpClient(found.url, token=found.token))
