"""Large parts of messages between hosts, over the streams of `tcp`: what core's entry point group `monarch.bulk` names.

The streams and the copies are core's; this module enables them, from the size on from which they pay.
"""

from __future__ import annotations

# Bytes below which a stream is no faster than the agents' connection, which needs no message that announces the part.
LEAST = 8 << 20


class StreamTransport:
    """All parts that are large enough."""

    def least(self) -> int | None:
        return LEAST


bulk_transport = StreamTransport()
