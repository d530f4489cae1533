"""What the service of a host reports of its mounts: rows of the tables `fs_events` and `mounts`, and metrics of the meter `monarch.fs`.

Mount server and daemon are no processes of a job, so no observer sees them. The service asks for their counts, at intervals, with each
status and before an unmount, and reports the difference to the counts before. A row is an event with the name of the table, whose
fields are its columns; nothing is written while no observer records. A read that fails has a row with its path and reason: of many
within one interval the last ones, and a row with the number of the others.
"""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from monarch.actor import get_meter
from monarch.extension import ProcId
from monarch.extension.events import emit
from monarch.fs._daemon.served_status import ServedStatus
from monarch.fs._hosts.host_answer import RefreshReport
from monarch.fs._relay.exchange import Refusal

TABLE, MOUNTS = "fs_events", "mounts"
Emit = Callable[..., None]


def record(target: str, event: str, *, path: str = "", bytes: int | None = None, detail: str = "", at: float | None = None) -> None:
    """A row: `path` is relative to the mount; `at` in seconds since the epoch, now by default."""
    fields: dict[str, object] = {"timestamp_us": int((time.time() if at is None else at) * 1e6), "host": socket.gethostname()}
    optional = {"path": path or None, "bytes": bytes, "detail": detail or None}
    emit(TABLE, **fields, target=target, event=event, **{name: value for name, value in optional.items() if value is not None})


def recorded_refresh(target: str, refresh: Callable[[], RefreshReport]) -> RefreshReport:
    """Refreshes, with a row of what it did, and its duration as a metric."""
    began = time.monotonic()
    try:
        report = refresh()
    except Exception as e:
        record(target, "refresh", detail=f"failed after {time.monotonic() - began:.3f} s: {(str(e) or type(e).__name__).splitlines()[0]}")
        raise
    detail = f"{report.changed} changed in {report.seconds:.3f} s, generation {report.generation}"
    record(target, "refresh", bytes=report.bytes_sent, detail=detail)
    get_meter("monarch.fs").create_histogram("monarch.fs.refresh.duration", "s").record(report.seconds)
    return report


class MountState(NamedTuple):
    """A mount as it is now. `generation` counts the trees that have been shown, from 1; `state` is "live", "failed" or "unmounted"."""

    target: str
    source: str
    generation: int
    state: str
    bytes_held: int
    faults: int


def show(mount: MountState, *, ended: bool = False) -> None:
    """A row of `mounts`: it takes the place of the one before."""
    emit(MOUNTS, host=socket.gethostname(), **mount._asdict(), **({"ended": True} if ended else {}))


class _Last:
    """The counts of a mount that have been reported, and the processes that they are of."""

    def __init__(self) -> None:
        self.server = self.daemon = 0
        self.failure = ""
        self.reads = self.waited = self.faults = self.bytes_read = self.bytes_fetched = self.errors = 0


class Observation:
    """Of one service; one thread at a time uses it.

    `record`, `count` and `show` take rows, metrics (name, amount, attributes), and the states of mounts.
    """

    def __init__(
        self, record: Emit = record, count: Callable[[str, float, Mapping[str, str]], None] | None = None, show: Emit = show
    ) -> None:
        self._record, self._count, self._show = record, count or _counted(), show
        self._mounts: dict[str, _Last] = {}
        # The rows of the last report.
        self._shown: dict[str, MountState] = {}
        self._relayed: dict[str, int] = {}

    def seen(self, target: str) -> tuple[int, int]:
        """The mount server, and the number of its last failure that has a row; (0, 0) where none has."""
        found = self._mounts.get(target)
        return (found.server, found.errors) if found is not None else (0, 0)

    def served(self, target: str, status: ServedStatus, daemon: int) -> None:
        """The state of a mount, and the pid of its daemon."""
        last = self._mounts.setdefault(target, _Last())
        last.failure = ""
        if last.daemon not in (0, daemon):
            self._record(target, "takeover", detail=f"the daemon {last.daemon} was replaced by {daemon}")
        if last.server != status.server:
            if last.server:
                detail = f"the mount server {last.server} was replaced by {status.server}"
                self._record(target, "takeover", detail=f"{detail}: {status.daemon_error}" if status.daemon_error else detail)
            self._mounts[target] = last = _Last()
        last.server, last.daemon = status.server, daemon
        self._failures(target, last, status)
        for name, amount in (
            ("monarch.fs.faults", status.faults - last.faults),
            ("monarch.fs.cache_hits", status.reads - status.waited - last.reads + last.waited),
        ):
            self._counted(name, amount, {})
        local = status.bytes_read - status.bytes_fetched - last.bytes_read + last.bytes_fetched
        self._counted("monarch.fs.bytes", local, {"from": "store"})
        last.reads, last.waited, last.faults = status.reads, status.waited, status.faults
        last.bytes_read, last.bytes_fetched, last.errors = status.bytes_read, status.bytes_fetched, status.errors

    def mounted(self, target: str, source: str, generation: int, held: int, faults: int) -> None:
        """What a mount shows. It is reported each time: an observer may have come since."""
        self._shown[target] = MountState(target, source, generation, "live", held, faults)
        self._show(self._shown[target])

    def failed(self, target: str, reason: str) -> None:
        """The mount has no state: it has gone, or does not answer."""
        if target in self._shown:
            self._show(self._shown[target]._replace(state="failed"))
        last = self._mounts.setdefault(target, _Last())
        if last.failure != reason:
            last.failure = reason
            self._record(target, "failed", detail=reason)

    def _failures(self, target: str, last: _Last, status: ServedStatus) -> None:
        fresh = [failure for failure in status.failures if failure.number > last.errors]
        more = status.errors - last.errors - len(fresh)
        if more > 0:
            self._record(target, "error", detail=f"{more} more reads failed")
        for failure in fresh:
            name = errno.errorcode.get(failure.errno, str(failure.errno))
            self._record(target, "error", path=failure.path, detail=f"{name}: {failure.reason}", at=failure.time)

    def relayed(self, counters: Mapping[str, int], refusals: Iterable[Refusal], target: Callable[[str], str]) -> None:
        """The counters of the exchange; `target` gives the mount point of a tree, or ""."""
        grown = {name: count - self._relayed.get(name, 0) for name, count in counters.items()}
        self._relayed = dict(counters)
        self._counted("monarch.fs.bytes", grown.get("bytes_from_client", 0), {"from": "client"})
        self._counted("monarch.fs.bytes", grown.get("bytes_from_hosts", 0), {"from": "host"})
        if grown.get("unstored", 0):
            size = grown.get("bytes_unstored", 0)
            self._record("", "store_full", bytes=size, detail=f"{grown['unstored']} chunks were passed on and not kept")
        for refusal in refusals:
            self._record(target(refusal.tree), "refused", detail=f"process {ProcId(refusal.sender.proc)}: {refusal.reason}")

    def forget(self, target: str) -> None:
        """The mount has ended."""
        self._mounts.pop(target, None)
        shown = self._shown.pop(target, None)
        if shown is not None:
            self._show(shown._replace(state="unmounted", bytes_held=0), ended=True)

    def _counted(self, name: str, amount: int, attributes: Mapping[str, str]) -> None:
        if amount > 0:
            self._count(name, amount, attributes)


def _counted() -> Callable[[str, float, Mapping[str, str]], None]:
    meter = get_meter("monarch.fs")
    units = {"monarch.fs.faults": "", "monarch.fs.cache_hits": "", "monarch.fs.bytes": "bytes"}
    counters = {name: meter.create_counter(name, unit) for name, unit in units.items()}
    return lambda name, amount, attributes: counters[name].add(amount, attributes)
