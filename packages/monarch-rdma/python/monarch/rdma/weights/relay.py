"""The staging memory of a target as a source of others.

Two words state what it has, and which version the target is about to get, so that its readers wait for that one. The target waits for no
reader: its next pull overwrites the memory, and a reader that finds another version afterwards reads it from elsewhere.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import numpy as np

from monarch import extension
from monarch.rdma._buffers.buffer import RDMABuffer
from monarch.rdma.weights.offer import packed_offer
from monarch.rdma.weights.words import WHOLE, WRITING, Words, version_of, word

if TYPE_CHECKING:
    from monarch.actor import Future
    from monarch.rdma.weights.planner import Pieces
    from monarch.rdma.weights.table import Numbers, Table

REQUEST = "monarch-rdma.weights.relay"
_numbers = count(1)
_relays: WeakValueDictionary[int, Relay] = WeakValueDictionary()


class Relay:
    """What a target serves. `number` is its number in this process."""

    def __init__(self, table: Table, memory: memoryview) -> None:
        self.table = table
        self.number = new_number()
        self._state = Words(2)
        self._words = RDMABuffer(self._state.memory, readonly=True)
        self._memory = RDMABuffer(memory, readonly=True)
        _relays[self.number] = self
        extension.serve(REQUEST, _answer)

    def wants(self, version: int) -> None:
        """The target is about to get this version."""
        self._state[1] = word(version, 0)

    def begin(self, version: int) -> None:
        """The bytes of this version begin to arrive."""
        self._state[0] = word(version, WRITING)

    def end(self, version: int) -> None:
        """They are complete."""
        self._state[0] = word(version, WHOLE)

    def rest(self) -> None:
        """The target gets no version."""
        self._state[1] = 0

    def offer(self) -> bytes:
        return packed_offer(self.table, self._words, [[self._memory]])

    def __del__(self) -> None:
        with suppress(Exception):  # the interpreter ends
            self._words.drop()
            self._memory.drop()


def new_number() -> int:
    """The number of a target in this process."""
    return next(_numbers)


def wanted(words: Numbers) -> int:
    """The version that the owner of these words is about to get; -1: none."""
    return version_of(int(words[1]))


def ask_relay(proc: extension.ProcId, number: int) -> Future[bytes]:
    """The bytes of an offer."""
    return extension.ask(proc, REQUEST, json.dumps(number).encode())


def staged_table(target: Table, pieces: Pieces) -> Table | None:
    """The pieces of a target as blocks of its staging memory; None if the sources have a tensor in different dtypes."""
    target = target.widened(pieces.extent.shape[1])
    dtype, itemsize = target.dtype.copy(), target.itemsize.copy()
    dtype[pieces.tensor], itemsize[pieces.tensor] = pieces.dtype, pieces.itemsize
    if (dtype[pieces.tensor] != pieces.dtype).any():
        return None
    return target._replace(
        dtypes=pieces.dtypes,
        dtype=dtype,
        itemsize=itemsize,
        tensor=pieces.tensor,
        region=np.zeros_like(pieces.tensor),
        start=pieces.dense,
        low=target.low[pieces.block] + pieces.low,
        shape=pieces.extent,
        strides=pieces.dense_strides,
    )


def needs(target: Table) -> str:
    """A digest of the boxes: the same for targets that need the same."""
    digest = hashlib.sha256(json.dumps([target.names, target.dtypes]).encode())
    for column in (target.dtype, target.dims, target.whole, target.tensor, target.low, target.shape):
        digest.update(np.ascontiguousarray(column, "<i8").tobytes())
    return digest.hexdigest()


def _answer(request: extension.Request) -> bytes | None:
    found = _relays.get(int(json.loads(bytes(request.body))))
    if found is None:
        request.defer()
        request.fail(b"the target has ended")
        return None
    return found.offer()
