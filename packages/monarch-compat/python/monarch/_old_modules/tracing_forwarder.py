"""The handler of torchmonarch 0.7 that gave log records to telemetry, for programs that add it to their loggers.

What always holds: telemetry has each record once. It takes records where they are made, with the actor and without a handler, so this
handler has nothing to do.
"""

from __future__ import annotations

import logging


class TracingForwarder(logging.NullHandler):
    """A handler without an effect."""
