"""Words with the version that each memory has: they are read like the weights, so a busy owner delays no reader.

A reader reads the words, the weights, and the words again; weights of a word that has changed in between are read anew. A word has the
version and one of three states.

A reader of weights that the trainer overwrites announces itself first, with the oldest version that it takes: at first the one after its
own. An update makes the version of its memory *closing* and waits for the readers that take it; readers that have announced themselves may
begin until it overwrites. So a trainer that updates without a pause lets each reader through once, and no reader twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from monarch.rdma._process.allocation import allocate

if TYPE_CHECKING:
    from numpy.typing import NDArray

WHOLE, CLOSING, WRITING = 1, 2, 3
_STATES = 4
# The word of all memories of a program that has ended; it has no version.
LOST = -1
# The largest version whose words have 8 bytes.
LAST = 2**61 - 2


def word(version: int, state: int) -> int:
    return (version + 1) * _STATES + state


def version_of(value: int) -> int:
    return value // _STATES - 1


def state_of(value: int) -> int:
    return value % _STATES


def is_there(value: int, version: int) -> bool:
    """Whether a reader that has begun to read this version has read it whole."""
    return value in (word(version, WHOLE), word(version, CLOSING))


class Words:
    """Words of 8 bytes in shared memory. A store is one instruction; the copies between two stores run on threads that start later."""

    def __init__(self, count: int, memory: memoryview | None = None) -> None:
        self.memory = allocate(8 * count) if memory is None else memory[: 8 * count]
        self.values: NDArray[np.int64] = np.frombuffer(self.memory, np.int64)

    def __getitem__(self, index: int) -> int:
        return int(self.values[index])

    def __setitem__(self, index: int, value: int) -> None:
        self.values[index] = value
