"""The agent's records of the processes of this host. A service queries them, and native code answers whatever the Python code does."""

from __future__ import annotations

import json

from monarch._core._native import inspect_agent
from monarch._core.extension.arguments import check_seconds
from monarch._core.observe.inspection import STACKS, STATE
from monarch._core.process.current import current_process
from monarch._core.process.identity import new_uid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def host_state(timeout: float = 6.0) -> dict[str, Any]:
    """The processes of this host, their actors, queues and links, in the format of `monarch ps --json` (docs/inspection.md).

    An agent answers within two seconds, whatever its procs do. `OSError` if it does not answer in `timeout` seconds, or has ended. The call
    blocks.
    """
    return _look(STATE, timeout)


def host_stacks(timeout: float = 6.0) -> dict[str, Any]:
    """The stacks of the processes of this host, in the format of `monarch stack --json`. The errors are those of `host_state`."""
    return _look(STACKS, timeout)


def _look(what: int, timeout: float) -> dict[str, Any]:
    check_seconds("timeout", timeout, positive=True)
    found: dict[str, Any] = json.loads(inspect_agent(current_process().agent_uid, new_uid(), what, timeout))
    return found
