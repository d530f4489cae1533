"""Endpoints that actors have begun and not ended: what a process was doing when it died."""

from __future__ import annotations

from typing import Any

from monarch.telemetry._arrow import pa, pc
from monarch.telemetry._ingest.rows import Rows

# The most messages without an end: the ends may be lost in an overwritten ring.
_MOST = 100_000


class Running:
    """By the ids of messages at their receivers. Not for several threads at once."""

    def __init__(self) -> None:
        # The last row is the message that started last.
        self._open: Any = None

    def change(self, begun: Rows | None, begun_ids: Any, ended_ids: Any) -> None:
        """These messages were begun, and then those have ended; None for none."""
        tables = [] if self._open is None else [self._open]
        if begun is not None:
            columns = {name: begun[name] for name in ("proc", "mesh", "method")}
            tables.append(pa.table({"id": begun_ids, **columns}))
        if not tables:
            return
        left = pa.concat_tables(tables)
        if ended_ids is not None:
            left = left.filter(pc.invert(pc.is_in(left["id"], value_set=ended_ids)))
        self._keep(left.slice(max(0, left.num_rows - _MOST)))

    def endpoint(self, proc: int, mesh: int | None = None) -> str | None:
        """What this process, or its actor of this mesh, has begun last and not ended."""
        if self._open is None:
            return None
        mine = pc.equal(self._open["proc"], pa.scalar(proc, pa.uint64()))
        if mesh is not None:
            mine = pc.and_(mine, pc.equal(self._open["mesh"], pa.scalar(mesh, pa.uint64())))
        methods = self._open["method"].filter(mine)
        return methods[-1].as_py() if len(methods) else None

    def forget(self, proc: int, mesh: int | None = None) -> None:
        """A process has ended, or its actor of this mesh, and with it all that it ran."""
        if self._open is None:
            return
        others = pc.not_equal(self._open["proc"], pa.scalar(proc, pa.uint64()))
        if mesh is not None:
            others = pc.or_(others, pc.not_equal(self._open["mesh"], pa.scalar(mesh, pa.uint64())))
        self._keep(self._open.filter(others))

    def __len__(self) -> int:
        return 0 if self._open is None else int(self._open.num_rows)

    def _keep(self, left: Any) -> None:
        self._open = left.combine_chunks() if left.num_rows else None
