"""The reading of events of the processes of this host: rings that the agent keeps, readers of them, and observers that get batches.

The agent of a host has the ring of each process as a file without a name. It sends processes of its host the places of the files; they map
the files and read by themselves, and the observed process is not disturbed.
"""

from __future__ import annotations

import marshal
import sys
from _thread import allocate_lock
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from monarch._core._native.events import Ring
from monarch._core._native.protocol import FIRST_ERROR, OK
from monarch._core.config.entry_points import BrokenEntry, entry_names, load_entry
from monarch._core.extension.arguments import check_count, check_seconds
from monarch._core.extension.event_batch import Batch
from monarch._core.extension.ids import JobId, ProcId
from monarch._core.extension.membership import is_ending, watch
from monarch._core.extension.process_check import checked_id
from monarch._core.extension.read_pause import ReadPause
from monarch._core.extension.thread import when_done
from monarch._core.process.current import current_process
from monarch._core.process.process import RECORDINGS
from monarch._core.process.recorder import ring_events
from monarch._core.process.request_fields import fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from monarch._core._native.events import Event
    from monarch._core.process.process import LocalProcess

    # Proc, pid, file, whether the process has ended, name, job.
    _Row = tuple[int, int, str, bool, str, int]

GROUP = "monarch.observer"
# The most events in one batch, so that an observer that is behind gets several batches.
_BATCH = 10_000
# Events that the agent records about other processes.
_OF_PROCS = ("proc.end", "output.line")
# The longest interval in seconds between two queries of the agent. The agent's ring counts the changes of the set of rings of its host, so
# a query follows each change; but the job of a process may become known later than its ring.
_ASK_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Recording:
    """The recorded events of a process of this host, which may have ended.

    `name` is the display of the process, and `job` its job: a host may serve several.
    """

    proc: ProcId
    pid: int
    ended: bool
    file: str
    name: str
    job: JobId

    def reader(self) -> Reader:
        """A reader of the events, from the oldest one in the ring. `OSError` if the agent has dropped them."""
        return Reader(self)


class Reader:
    """The events of one process, in order, each once."""

    def __init__(self, recording: Recording) -> None:
        self.proc = recording.proc
        self.pid = recording.pid
        # In the ring of an ended process, an unfinished event is not awaited.
        self.ended = recording.ended
        self.__core__ = Ring(recording.file)
        if self.__core__.proc != self.proc:
            raise FileNotFoundError(f"the events of {self.proc} are not kept any more: more recent processes have ended since")

    @property
    def lost(self) -> int:
        """The number of events that this reader has missed since it was made: they were overwritten before, or never finished."""
        return self.__core__.lost

    @property
    def capacity(self) -> int:
        """The number of events that the process keeps."""
        return self.__core__.capacity

    def drain(self, most: int = _BATCH) -> Batch:
        """The next events, at most `most`, as single events or as columns; an empty batch if there are no new ones.

        Native code copies them without the GIL, and makes no object for an event.
        """
        check_count("most", most, sys.maxsize, 1)
        drained = self.__core__.drain(most, self.ended)
        return Batch(self.proc, self.pid, drained, self.__core__.lost, self.ended)

    def read(self, most: int = _BATCH) -> list[Event]:
        """The next events, at most `most` (10,000 by default); none if there are no new ones. More may follow if the list has `most`."""
        return self.drain(most).events

    def last(self, events: int) -> list[Event]:
        """The last events, at most `events`; earlier ones are skipped."""
        check_count("events", events, sys.maxsize, 1)
        self.__core__.skip_to_last(events)
        return self.read(events)


class Observer(Protocol):
    """The receiver of the events of a host: called on a thread of its own with one batch after another."""

    def __call__(self, batch: Batch, /) -> None: ...


def recordings() -> list[Recording]:
    """The processes of this process's host whose events are recorded or were: the agent first, ended processes last."""
    return _ask(0)


class Observation:
    """An observer that is attached. `error` is the exception that the observer raised; it then gets no more batches."""

    def __init__(self, name: str, observer: Callable[[Batch], None], every: float, job: JobId | None) -> None:
        from threading import Condition, Thread
        from threading import Event as Signal

        self.name = name
        self.error: BaseException | None = None
        self._observer = observer
        self._every = every
        self._job = job
        self._pause = ReadPause(every)
        # The latest time of the next query of the agent, and the change count at the last query.
        self._due = 0.0
        self._changes = -1
        self._readers: dict[ProcId, Reader] = {}
        # The agent of this host, whose own id differs from the id of the host in a job; None until it is found.
        self._agent: ProcId | None = None
        self._over: set[ProcId] = set()
        # Set for a read at once: for the end, or because `look` was called.
        self._wake = Signal()
        self._is_over = self._introduce = False
        self._looks = Condition()
        self._asked = self._looked = 0
        self._has_ended = False
        _ask(1)
        self._thread = Thread(target=self._run, name="monarch-observer", daemon=True)
        self._thread.start()

    def stop(self, timeout: float | None = 10.0) -> bool:
        """Detaches the observer, after it has received the events recorded until now.

        Waits until it has returned, at most `timeout` seconds (None: for ever), and returns whether it has. From inside the observer it
        does not wait.
        """
        from threading import current_thread

        if timeout is not None:
            check_seconds("timeout", timeout, ", or None")
        self._is_over = True
        self._wake.set()
        if current_thread() is not self._thread:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def look(self, timeout: float = 1.0) -> bool:
        """Gives the observer now the events recorded until now; whether it has returned within `timeout` seconds.

        `RuntimeError` from inside the observer, which would wait for itself.
        """
        from threading import current_thread

        check_seconds("timeout", timeout)
        if current_thread() is self._thread:
            raise RuntimeError("look() was called by the observer itself")
        with self._looks:
            self._asked += 1
            mine = self._asked
            self._wake.set()
            return self._looks.wait_for(lambda: self._looked >= mine or self._has_ended, timeout) and self._looked >= mine

    def introduce(self) -> None:
        """Makes all processes of this host record again their identity, their meshes, and their actors.

        For an observer that has lost events, which may include these. The call does not wait: the events come with one of the next reads.
        """
        self._introduce = True
        self._due = 0.0
        self._wake.set()

    def _run(self) -> None:
        try:
            over = False
            while not over:
                self._wake.wait(self._pause.pause)
                self._wake.clear()
                # This drain includes all events recorded before the call of `stop`, even if the observer was busy then.
                over, asked = self._is_over, self._asked
                self._drain(over or asked > self._looked)
                with self._looks:
                    self._looked = asked
                    self._looks.notify_all()
        except BaseException as e:  # an exception of another wheel, or the end of this process: the observer is left out
            if is_ending():
                return
            self.error = e
            import logging

            logging.getLogger("monarch.extension").warning("the observer %s failed and gets no more events", self.name, exc_info=e)
        finally:
            with self._looks:
                self._has_ended = True
                self._looks.notify_all()
            self._readers.clear()
            _release()

    def _drain(self, whole: bool) -> None:
        """Gives the observer the new events. `whole`: also of processes that have come since the last query of the host.

        The agent records the output of processes and their ends. Its ring is read first, and delivered last: so the
        observer first gets the earlier events of a process, and knows the process, even one that lives for an instant.
        """
        filled: list[float] = []
        if self._agent is None:
            self._find()
        agent = self._readers.get(self._agent) if self._agent is not None else None
        held = list(self._batches(agent, filled)) if agent is not None else []
        # The ends of these processes are in `held`, or were delivered before.
        over = [proc for proc, reader in self._readers.items() if reader.ended]
        changes = -1 if agent is None else agent.__core__.changes
        if whole or changes != self._changes or agent is None or monotonic() >= self._due or self._names_unknown(held):
            self._changes = changes
            self._due = monotonic() + max(self._every, _ASK_SECONDS)
            self._find()
        for reader in list(self._readers.values()):
            if reader is not agent:
                for batch in self._batches(reader, filled):
                    self._observer(batch)
        for batch in held:
            self._observer(batch)
        for proc in over:
            self._over.add(proc)
            self._observer(self._readers.pop(proc).drain())
        self._pause.looked(max(filled, default=0.0))

    def _names_unknown(self, held: list[Batch]) -> bool:
        """Whether the agent's events name a process that has not been found."""
        known = self._readers.keys() | self._over
        columns = [batch.columns[kind]["proc"] for batch in held for kind in _OF_PROCS if kind in batch.columns]
        return any(proc not in known for column in columns for proc in set(column))

    def _batches(self, reader: Reader, filled: list[float]) -> Iterator[Batch]:
        """The new events. A process that records faster than the observer takes delays neither the others nor the end."""
        new, lost = 0, reader.lost
        while new < reader.capacity and (batch := reader.drain()):
            new += len(batch)
            # The last batch of a process is still to come.
            batch.ended = False
            yield batch
        filled.append((new + reader.lost - lost) / reader.capacity)

    def _find(self) -> None:
        """Finds the processes of the host to read, and those that have ended."""
        again, self._introduce = self._introduce, False
        rows = _ask(0, again)
        # The files are descriptors of the agent.
        self._agent = next((row.proc for row in rows if row.file.startswith(f"/proc/{row.pid}/")), None)
        found = {row.proc: row for row in rows if self._job is None or row.job == self._job}
        self._over &= found.keys()
        for proc, reader in self._readers.items():
            # The agent keeps the rings of the last ended processes; this process has mapped all rings that it reads.
            reader.ended = proc not in found or found[proc].ended
        for proc in found.keys() - self._readers.keys() - self._over:
            try:
                self._readers[proc] = found[proc].reader()
            except OSError:  # the process has ended, and the agent has dropped its ring for more recent ones
                continue


def observe(observer: Observer | str, *, every: float = 0.2, job: JobId | None = None) -> Observation:
    """Attaches an observer to all present and future processes of this host: from now on they record their events.

    `observer` is called with a `Batch` every `every` seconds, and sooner if a ring would wrap around meanwhile, on a dedicated thread of
    this process; a string is the name of an entry point of the group `monarch.observer`. With a `job` it gets the events of that job only.
    An observer that raises is logged by name and left out. `LookupError` if no wheel has an entry point of this name, `ImportError` if it
    cannot be loaded.

    A running process begins to record when its I/O thread gets the request, for which this function does not wait:
    within milliseconds; a stopped process begins when it is continued. `recordings` lists the processes that have begun.
    """
    if not (isinstance(observer, str) or callable(observer)):
        wanted = "a function that takes a Batch, or the name of an entry point"
        raise TypeError(f"observer={observer!r}: expected {wanted}, not {type(observer).__name__}")
    check_seconds("every", every, positive=True)
    if job is not None:
        job = JobId(checked_id(job, "observe: job"))
    if not isinstance(observer, str):
        return Observation(getattr(observer, "__qualname__", type(observer).__qualname__), observer, every, job)
    found = load_entry(GROUP, observer)
    if found is None:
        raise LookupError(f"no wheel has an observer {observer!r}; there is {', '.join(entry_names(GROUP)) or 'none'}")
    if isinstance(found, BrokenEntry):
        raise ImportError(found.describe()) from found.error
    is_function = callable(found.value)
    if not is_function:
        raise TypeError(f"observer {observer!r} of {found.wheel} is {found.value!r}, not a function that takes a Batch")
    return Observation(f"{observer!r} of {found.wheel}", found.value, every, job)


def _ask(change: int, again: bool = False) -> list[Recording]:
    """Queries the agent. `change`: 1 for a new observer, -1 for a removed one. `again`: processes introduce themselves again."""
    process = current_process()
    body = marshal.dumps((change, again, ring_events()))
    if process.is_client:
        return _described(_answer(process, process.uid, change, again, ring_events()))
    call = process.native.cell(FIRST_ERROR, 1, [process.agent_uid])
    process.native.request(process.agent_uid, RECORDINGS, body, call.slot)
    call.wait()
    result = call.result(0)
    if result is None or result.status != OK:
        call.set_retrieved()
        raise RuntimeError("the agent of this host does not answer: the process is ending")
    return _described(marshal.loads(result.raw()))


def _release() -> None:
    try:
        _ask(-1)
    except (RuntimeError, OSError):  # this process ends, and the agent notices that
        return


def _described(rows: list[_Row]) -> list[Recording]:
    return [Recording(ProcId(proc), pid, ended, file, name, JobId(job)) for proc, pid, file, ended, name, job in rows]


_lock = allocate_lock()
# In an agent: the number of observers of each process.
_observers: dict[int, int] = {}
# In an agent: seconds for which processes continue to record after an observer was killed. Its replacement starts within a second, or
# several on a busy machine, and finds the events of the meantime in the rings.
_GRACE_SECONDS = 10.0
_graces = 0


def handle_request(process: LocalProcess, sender: int, slot: int, body: bytes) -> None:
    """Answers a process of this host. Called on the housekeeping thread of the host's agent."""
    change, again, events = fields(body, int, int, int)
    process.native.reply(sender, slot, 0, OK, marshal.dumps(_answer(process, sender, change, again, events)))


def _answer(process: LocalProcess, sender: int, change: int, again: bool, events: int) -> list[_Row]:
    if change or again:
        with _lock:
            is_new = sender not in _observers
            _observers[sender] = _observers.get(sender, 0) + change
            # This makes processes that already record introduce themselves.
            _settle(process, events)
        if is_new and change > 0 and sender != process.uid:
            # A killed process releases no observer by itself.
            when_done(watch(ProcId(sender)), lambda _: _forget(process, sender))
    return process.native.recorded()


def _forget(process: LocalProcess, sender: int) -> None:
    """Removes the observers of a process that has ended without releasing them."""
    global _graces
    from threading import Timer

    with _lock:
        if not _observers.pop(sender, 0):
            return
        _graces += 1
    timer = Timer(_GRACE_SECONDS, _end_grace, (process,))
    timer.name, timer.daemon = "monarch-observer-grace", True
    timer.start()


def _end_grace(process: LocalProcess) -> None:
    global _graces
    with _lock:
        _graces -= 1
        if not is_ending():
            _settle(process, ring_events())


def _settle(process: LocalProcess, events: int) -> None:
    """Makes the processes of this host record while there is an observer."""
    for observer in [uid for uid, count in _observers.items() if count <= 0]:
        del _observers[observer]
    process.native.record_host(events if _observers or _graces else 0)
