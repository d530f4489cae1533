"""Connections between a keeper and its clients: a socket in a private folder, whose name and greeting both sides know.

Each end compares the other's uid with its own. The keeper sends a greeting, the client a request, and the keeper the answer.
"""

from __future__ import annotations

import json
import os
from typing import Any

from monarch.extension.channel import Channel, open_private
from monarch.extension.channel import connect as connect_socket
from monarch.job.errors import CredentialsError

SOCKET = "socket"
# The field of an answer that has the places of hosts which the keeper has lost and whose workers run: the request was not carried out.
SILENT = "silent_hosts"


def opened(folder: str) -> int:
    """A descriptor of the folder; `CredentialsError` unless it is this user's alone."""
    try:
        return open_private(folder)
    except PermissionError as e:
        raise CredentialsError(str(e), path=folder) from None


def connect(folder: str, seconds: float) -> Channel | None:
    """A connection to the process that listens in the folder; None where no process does."""
    try:
        descriptor = opened(folder)
    except FileNotFoundError:
        return None
    try:
        channel = Channel(connect_socket(descriptor, SOCKET, seconds), max_blob=0)
    except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
        return None
    finally:
        os.close(descriptor)
    try:
        channel.check_peer()
    except BaseException:
        channel.close()
        raise
    return channel


def plain(message: dict[str, Any]) -> dict[str, Any]:
    """The message as JSON has it: services describe themselves by values of any type."""
    return json.loads(json.dumps(message, default=str))
