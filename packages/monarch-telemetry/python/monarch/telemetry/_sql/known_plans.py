"""The plans of the statements that were asked last: a page or a script that asks again pays for planning once.

Only plans that keep the whole statement for the hosts are known. The fragments of the others have constants such as `now()` in them, as
they were when the plan was made.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from monarch.telemetry._sql.known_parts import CLOCK

if TYPE_CHECKING:
    from monarch.telemetry._sql.limits import Limits
    from monarch.telemetry._sql.plan import Plan

# The most statements; a plan has some KiB.
_MOST = 256


class KnownPlans:
    """Any thread."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._plans: OrderedDict[tuple[object, ...], Plan] = OrderedDict()

    def plan(
        self,
        sql: str,
        schemas: Mapping[str, Any],
        limits: Limits,
        cut: bool,
        make: Callable[[], Plan],
        hosts: Mapping[int, str] | None = None,
    ) -> Plan:
        """The plan of this statement over the same schemas and hosts, made by `make` where it is not known."""
        key = (sql, limits, cut, tuple((hosts or {}).items()))
        with self._lock:
            found = self._plans.get(key)
            if found is not None and found.schemas is schemas:
                self._plans.move_to_end(key)
                return found
        made = make()
        # Functions of the time may choose hosts: those of `Plan.without` are constants too.
        if made.way in ("states", "rows") and not (made.without and CLOCK.search(sql)):
            with self._lock:
                self._plans[key] = made
                self._plans.move_to_end(key)
                while len(self._plans) > self._most:
                    self._plans.popitem(last=False)
        return made
