"""What a reader gets of a memory with weights: the table, and handles of its words and memories."""

from __future__ import annotations

import json
from struct import Struct
from typing import TYPE_CHECKING, Any

from monarch.rdma._buffers.buffer import RDMABuffer
from monarch.rdma.weights.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

_HEAD = Struct("<I")


class Offer:
    """The answer to a reader that attaches."""

    def __init__(self, body: bytes) -> None:
        (length,) = _HEAD.unpack_from(body)
        head: dict[str, Any] = json.loads(body[_HEAD.size : _HEAD.size + length])
        self.table = Table.unpacked(body[_HEAD.size + length :])
        self.words = _buffer(head["words"])
        self.slots = [[_buffer(packed) for packed in slot] for slot in head["slots"]]
        self.announcement = _buffer(head["announcement"]) if head["announcement"] else None
        # Seconds after which the source forgets an announcement.
        self.wait = float(head["wait"])
        # The source is one of a program that the process runs.
        self.of_program = bool(head["program"])


def packed_offer(
    table: Table,
    words: RDMABuffer,
    slots: Sequence[Sequence[RDMABuffer]],
    announcement: RDMABuffer | None = None,
    wait: float = 0.0,
    of_program: bool = False,
) -> bytes:
    """The bytes of an offer."""
    head = {
        "words": words.to_bytes().hex(),
        "slots": [[buffer.to_bytes().hex() for buffer in slot] for slot in slots],
        "announcement": "" if announcement is None else announcement.to_bytes().hex(),
        "wait": wait,
        "program": of_program,
    }
    text = json.dumps(head).encode()
    return _HEAD.pack(len(text)) + text + table.packed()


def _buffer(packed: str) -> RDMABuffer:
    return RDMABuffer.from_bytes(bytes.fromhex(packed))
