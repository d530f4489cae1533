"""What a keeper serves, as its folder has it: the next keeper starts the services again that one which was killed has left.

The keeper writes it, and a client that stops a service while no keeper runs. A request to stop takes a service out; the end of the keeper
does not, whatever ends it: with the job the folder goes too.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from typing import Any

RECORD = "services"

# The configurations by service and key.
Configs = dict[tuple[str, str], dict[str, Any]]


def load(folder: str) -> Configs:
    """The configurations of the services; none where there is no record, or a damaged one."""
    try:
        with open(os.path.join(folder, RECORD), "rb") as f:
            rows: list[dict[str, Any]] = json.load(f)
        return {(str(row["service"]), str(row["key"])): dict(row["config"]) for row in rows}
    except (OSError, ValueError, TypeError, KeyError):
        return {}


def save(folder: str, configs: Mapping[tuple[str, str], Mapping[str, Any]]) -> None:
    """Replaces the record in one step. `OSError` where it cannot be written."""
    path = os.path.join(folder, RECORD)
    rows = [{"service": service, "key": key, "config": dict(config)} for (service, key), config in configs.items()]
    temporary = f"{path}.{os.getpid()}"
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600), "w") as f:
            json.dump(rows, f)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def remove(folder: str, service: str, key: str) -> None:
    """Takes a service out; none is no error."""
    configs = load(folder)
    if configs.pop((service, key), None) is not None:
        save(folder, configs)
