"""One table of history: rows in the order in which they came, in partitions, of which the oldest are dropped.

A look at a ring gives few rows, and a query pays for each batch that it scans, so the open partition joins its batches as it grows. A
sealed partition never changes. The rows that a reader has received stay as they are, whatever is dropped later.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from monarch.telemetry._arrow import pa

# Bytes of a partition, and seconds from its first to its last row: the unit in which history is dropped.
PARTITION_BYTES, PARTITION_SECONDS = 1 << 20, 10.0
# Batches of the open partition that are joined into one.
_JOIN = 32


class Partition(NamedTuple):
    batches: tuple[Any, ...]
    rows: int
    nbytes: int
    # Times of the first and last row in the clock of the store, in seconds.
    first: float
    last: float


class History:
    """The rows of one table. Not for several threads at once."""

    def __init__(self, schema: Any) -> None:
        self.schema = schema
        self._sealed: deque[Partition] = deque()
        self._open: list[Any] = []
        self._joined = 0
        self._first = self._last = 0.0
        self.rows = self.nbytes = 0
        self._open_rows = self._open_bytes = 0
        # Rows that were dropped because of age or size.
        self.dropped = 0

    def append(self, batch: Any, now: float) -> None:
        """`ValueError` for a batch of another schema."""
        if not batch.schema.equals(self.schema):
            raise ValueError(f"a batch has the columns {batch.schema.names}, the table {self.schema.names}")
        if not batch.num_rows:
            return
        if self._open and (self._open_bytes >= PARTITION_BYTES or now - self._first >= PARTITION_SECONDS):
            self._seal()
        if not self._open:
            self._first = now
        size = _size(batch)
        self._open.append(batch)
        self._last = now
        self._open_rows += batch.num_rows
        self._open_bytes += size
        self.rows += batch.num_rows
        self.nbytes += size
        if len(self._open) - self._joined >= _JOIN:
            self._join()

    def _join(self) -> None:
        """Joins the small batches since the last join; a batch that was joined is joined once more when it is sealed."""
        joined = pa.concat_batches(self._open[self._joined :])
        self._open[self._joined :] = [joined]
        self._joined += 1
        self._count_open()

    def _count_open(self) -> None:
        size = sum(map(_size, self._open))
        self.nbytes += size - self._open_bytes
        self._open_bytes = size

    def _seal(self) -> None:
        if len(self._open) > 1:
            self._open = [pa.concat_batches(self._open)]
            self._count_open()
        self._sealed.append(Partition(tuple(self._open), self._open_rows, self._open_bytes, self._first, self._last))
        self._open, self._joined, self._open_rows, self._open_bytes = [], 0, 0, 0

    @property
    def oldest(self) -> float | None:
        """The time of the first row that is kept."""
        if self._sealed:
            return self._sealed[0].first
        return self._first if self._open else None

    def drop_oldest(self) -> int:
        """Drops a partition, the open one when there is no other; the bytes that are free then."""
        if not self._sealed:
            if not self._open:
                return 0
            self._seal()
        gone = self._sealed.popleft()
        self.rows -= gone.rows
        self.nbytes -= gone.nbytes
        self.dropped += gone.rows
        return gone.nbytes

    def expire(self, before: float) -> None:
        """Drops the partitions of which the last row came before this time."""
        while self._sealed and self._sealed[0].last < before:
            self.drop_oldest()
        if not self._sealed and self._open and self._last < before:
            self.drop_oldest()

    def batches(self) -> list[Any]:
        """All rows, oldest first."""
        return [batch for partition in self._sealed for batch in partition.batches] + self._open[:]


def _size(batch: Any) -> int:
    """Bytes of the buffers that the batch keeps in memory, those outside of a slice too."""
    return int(batch.get_total_buffer_size())
