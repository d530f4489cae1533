"""Events of the processes of this host, as they are read: rings that the agent keeps, readers of them, and observers that get batches.

The agent of a host has the ring of each process as a file without a name. It tells processes of its host where the files are; they map
them and read by themselves, and the process that is observed does not notice.
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
from monarch._core.extension.known import checked_id
from monarch._core.extension.membership import is_ending, watch
from monarch._core.extension.pace import Pace
from monarch._core.extension.thread import when_done
from monarch._core.process.current import current_process
from monarch._core.process.process import RECORDINGS
from monarch._core.process.recorder import ring_events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from monarch._core._native.events import Event
    from monarch._core.process.process import LocalProcess

    # Proc, pid, file, whether it has ended, name, job.
    _Row = tuple[int, int, str, bool, str, int]

GROUP = "monarch.observer"
# Events of one batch at most, so that an observer that is behind gets several.
_BATCH = 10_000
# Events that the agent records about other processes.
_OF_PROCS = ("proc.end", "output.line")
# The ring of an agent counts how often the set of rings of its host changes, so it is asked when there is news. Seconds after which it is
# asked all the same: the job of a process may become known later than its ring.
_ASK_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Recording:
    """The recorded events of a process of this host, which may have ended.

    `name` is the display of the process, and `job` the job that it belongs to: a host may serve several.
    """

    proc: ProcId
    pid: int
    ended: bool
    file: str
    name: str
    job: JobId

    def reader(self) -> Reader:
        """Reads the events, from the oldest that is there. `OSError` if the agent has let go of them."""
        return Reader(self)


class Reader:
    """The events of one process, in order, each once."""

    def __init__(self, recording: Recording) -> None:
        self.proc = recording.proc
        self.pid = recording.pid
        # Of a process that has ended: what it has not finished to write is not waited for.
        self.ended = recording.ended
        self._ring = Ring(recording.file)
        if self._ring.proc != self.proc:
            raise FileNotFoundError(f"the events of {self.proc} are not kept any more: more recent processes have ended since")

    @property
    def lost(self) -> int:
        """Events that this reader did not get, since it was made: they were overwritten before, or never finished."""
        return self._ring.lost

    @property
    def capacity(self) -> int:
        """How many events the process keeps."""
        return self._ring.capacity

    def drain(self, most: int = _BATCH) -> Batch:
        """The next events, at most so many, to be had one by one or column by column; an empty batch if there are no new ones.

        Native code copies them without the GIL, and makes no object for an event.
        """
        check_count("most", most, sys.maxsize, 1)
        drained = self._ring.drain(most, self.ended)
        return Batch(self.proc, self.pid, drained, self._ring.lost, self.ended)

    def read(self, most: int = _BATCH) -> list[Event]:
        """The next events, at most `most` (10,000 if left out); none if there are no new ones. More are there if it gives as many."""
        return self.drain(most).events

    def last(self, events: int) -> list[Event]:
        """The last events, at most so many; those before are skipped."""
        check_count("events", events, sys.maxsize, 1)
        self._ring.skip_to_last(events)
        return self.read(events)


class Observer(Protocol):
    """What gets the events of a host: called on a thread of its own with one batch after another."""

    def __call__(self, batch: Batch, /) -> None: ...


def recordings() -> list[Recording]:
    """The processes of this process's host whose events are recorded or were: the agent first, those that have ended last."""
    return _ask(0)


class Observation:
    """An observer that is attached. `error` is what it raised: it is left out from then on."""

    def __init__(self, name: str, observer: Callable[[Batch], None], every: float, job: JobId | None) -> None:
        from threading import Condition, Thread
        from threading import Event as Signal

        self.name = name
        self.error: BaseException | None = None
        self._observer = observer
        self._every = every
        self._job = job
        self._pace = Pace(every)
        # When the agent is asked at the latest for the processes of the host, and the count of changes when it was asked last.
        self._due = 0.0
        self._changes = -1
        self._readers: dict[ProcId, Reader] = {}
        # The agent of this host, whose own number is not the one that a job has for the host; None until it is found.
        self._agent: ProcId | None = None
        self._over: set[ProcId] = set()
        # Set for a look at once: to the end, or because `look` was called.
        self._wake = Signal()
        self._is_over = self._introduce = False
        self._looks = Condition()
        self._asked = self._looked = 0
        self._has_ended = False
        _ask(1)
        self._thread = Thread(target=self._run, name="monarch-observer", daemon=True)
        self._thread.start()

    def stop(self, timeout: float | None = 10.0) -> bool:
        """Detaches the observer, after it has got what was recorded until now.

        Waits until it has returned, at most so many seconds (None: for ever), and tells whether it has. From inside the observer it does
        not wait.
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
        """Gives the observer now what was recorded until now; whether it has returned within so many seconds.

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
        """Has all processes of this host record again what they are, which meshes they have made, and which actors they have.

        For an observer that has lost events, and with them some of these. It does not wait: the events come with one of the next looks.
        """
        self._introduce = True
        self._due = 0.0
        self._wake.set()

    def _run(self) -> None:
        try:
            over = False
            while not over:
                self._wake.wait(self._pace.pause)
                self._wake.clear()
                # What was recorded before `stop` was called is in this drain, also where the observer was busy then.
                over, asked = self._is_over, self._asked
                self._drain(over or asked > self._looked)
                with self._looks:
                    self._looked = asked
                    self._looks.notify_all()
        except BaseException as e:  # of another wheel, or the end of this process: it is left out
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
        """`whole`: also of processes that have come since the last look at the host.

        The agent records what processes have printed, and how they have ended. Its ring is read first, and given last: then the
        observer has got what a process had recorded before, and knows it, also one that lives for an instant.
        """
        filled: list[float] = []
        if self._agent is None:
            self._find()
        agent = self._readers.get(self._agent) if self._agent is not None else None
        held = list(self._batches(agent, filled)) if agent is not None else []
        # How these have ended is in what is held, or was given before.
        over = [proc for proc, reader in self._readers.items() if reader.ended]
        changes = -1 if agent is None else agent._ring.changes
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
        self._pace.looked(max(filled, default=0.0))

    def _names_unknown(self, held: list[Batch]) -> bool:
        """Whether the agent's events name a process that has not been found."""
        known = self._readers.keys() | self._over
        columns = [batch.columns[kind]["proc"] for batch in held for kind in _OF_PROCS if kind in batch.columns]
        return any(proc not in known for column in columns for proc in set(column))

    def _batches(self, reader: Reader, filled: list[float]) -> Iterator[Batch]:
        """What is new; a process that records faster than the observer takes holds back neither the others nor the end."""
        new, lost = 0, reader.lost
        while new < reader.capacity and (batch := reader.drain()):
            new += len(batch)
            # The last batch of a process is still to come.
            batch.ended = False
            yield batch
        filled.append((new + reader.lost - lost) / reader.capacity)

    def _find(self) -> None:
        """The processes of the host that are to be read, and those that have ended."""
        again, self._introduce = self._introduce, False
        rows = _ask(0, again)
        # The files are descriptors of the agent.
        self._agent = next((row.proc for row in rows if row.file.startswith(f"/proc/{row.pid}/")), None)
        found = {row.proc: row for row in rows if self._job is None or row.job == self._job}
        self._over &= found.keys()
        for proc, reader in self._readers.items():
            # The agent keeps the last ones that have ended; this process has all mapped that it reads.
            reader.ended = proc not in found or found[proc].ended
        for proc in found.keys() - self._readers.keys() - self._over:
            try:
                self._readers[proc] = found[proc].reader()
            except OSError:  # it has ended, and more recent ones have since
                continue


def observe(observer: Observer | str, *, every: float = 0.2, job: JobId | None = None) -> Observation:
    """Attaches an observer to all processes of this host, those that come too: from now on they record their events.

    `observer` is called with a `Batch` every so many seconds, and sooner where a ring would go round meanwhile, on a thread of this process
    that nothing else waits for; a string is the name of an entry point of the group `monarch.observer`. With a `job` it gets the events of
    that job only. An observer that raises is logged by name and left out. `LookupError` if no wheel has an entry point of this name,
    `ImportError` if it cannot be loaded.

    A process that exists already begins when its thread for input and output gets the request, which this function does not wait for:
    within milliseconds, and one that is stopped when it goes on. `recordings` lists those that have begun.
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
    """Asks the agent; `change`: 1 for an observer that comes, -1 for one that goes. `again`: processes introduce themselves again."""
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
    except (RuntimeError, OSError):  # the process ends, and the agent knows
        return


def _described(rows: list[_Row]) -> list[Recording]:
    return [Recording(ProcId(proc), pid, ended, file, name, JobId(job)) for proc, pid, file, ended, name, job in rows]


_lock = allocate_lock()
# Of an agent: how many observers each process has.
_observers: dict[int, int] = {}
# Of an agent: processes go on recording for so many seconds after an observer was killed. The one that is started in its place, in a second
# or several on a busy machine, finds in the rings what happened meanwhile.
_GRACE_SECONDS = 10.0
_graces = 0


def handle_request(process: LocalProcess, sender: int, slot: int, body: bytes) -> None:
    """Answers a process of this host. On the housekeeping thread of its agent."""
    change, again, events = marshal.loads(body)
    process.native.reply(sender, slot, 0, OK, marshal.dumps(_answer(process, sender, change, again, events)))


def _answer(process: LocalProcess, sender: int, change: int, again: bool, events: int) -> list[_Row]:
    if change or again:
        with _lock:
            is_new = sender not in _observers
            _observers[sender] = _observers.get(sender, 0) + change
            # Processes that record already introduce themselves with this.
            _settle(process, events)
        if is_new and change > 0 and sender != process.uid:
            # One that is killed releases nothing.
            when_done(watch(ProcId(sender)), lambda _: _forget(process, sender))
    return process.native.recorded()


def _forget(process: LocalProcess, sender: int) -> None:
    """A process that had observers has ended without letting go of them."""
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
    """The processes of this host record while there is an observer."""
    for observer in [uid for uid, count in _observers.items() if count <= 0]:
        del _observers[observer]
    process.native.record_host(events if _observers or _graces else 0)
