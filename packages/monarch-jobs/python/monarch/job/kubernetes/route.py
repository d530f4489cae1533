"""Whether this machine has a route to the network of pods."""

from __future__ import annotations

import socket
import time

from monarch.job._machine.commands import DIAL_TIMEOUT_S, time_left

# A pod without a readiness probe is Ready before its worker listens, and refuses connections until then.
REFUSED_S = 10.0
_PAUSE_S = 0.05


def has_route(host: str, port: int) -> bool:
    """Does a connection get there? One that stays refused is taken for a firewall's answer."""
    end = time.monotonic() + time_left(REFUSED_S)
    while True:
        try:
            socket.create_connection((host, port), DIAL_TIMEOUT_S).close()
        except ConnectionRefusedError:
            if time.monotonic() >= end:
                return False
        except OSError:
            return False
        else:
            return True
        time.sleep(_PAUSE_S)
