"""The controller of the workers of one mesh: numbers, definitions, batches, and the bound on how far it may be ahead."""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

from monarch.actor import SupervisionError
from monarch.extension import end_of, member
from monarch.extension.mesh import mesh_view
from monarch.extension.pickling import dumps
from monarch.tensor._controller.flusher import Flusher
from monarch.tensor._controller.outbox import Outbox
from monarch.tensor._controller.place_base import PlaceBase
from monarch.tensor._protocol import metrics
from monarch.tensor._protocol.commands import RELEASE, SIGNAL, WAIT, Apply
from monarch.tensor._protocol.failures import Failures, listen
from monarch.tensor._protocol.frames import Site, current_site
from monarch.tensor._worker.actor import Worker
from monarch.tensor.errors import TensorMeshError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, MutableMapping, Sequence

    from monarch.actor import Future, ProcMesh
    from monarch.extension import HostId, ProcId
    from monarch.tensor._controller.propagate import Known
    from monarch.tensor._controller.recorder import Recorder
    from monarch.tensor._protocol.commands import Definition

# The issuing thread sends a batch with this many commands. It also sends the first ones after a pause, so that workers begin, and after
# these seconds since the last batch: the first time after a pause, and at most. It reads the clock with each command whose number has none
# of the bits of the mask.
BATCH_COMMANDS = 256
FIRST_SECONDS = 500e-6
GROWING_SECONDS = 2e-3
_CLOCK_MASK = 7
# The most by which the controller may precede the slowest worker: four marks, each of so many commands or bytes.
MARKS = 4
MARK_COMMANDS = 1_024
MARK_BYTES = 16 << 20
# Entries of the tables are freed together in this number, or at the end of the batch; large ones at once.
_RELEASES = 16
# The most cached signatures of operators; beyond it the first quarter is dropped, and the workers forget them the next time.
_SIGNATURES = 16_384

_now = time.monotonic

_sessions = itertools.count()


class Controller:
    """One for each activated mesh of procs. Any thread issues commands; their order is that in which they come into the batch.

    A command is one entry, which is there or not: Ctrl-C, or the handler of a signal that issues commands itself, may come between any two
    instructions.

    `rank` is a worker's place in the activated mesh.
    """

    # Whether there are workers: a simulation has none.
    has_workers = True
    # The hosts of the ranks, in their order.
    hosts: Sequence[Any]
    size: int

    def __init__(self, procs: ProcMesh) -> None:
        self.procs = procs
        self.lock = threading.RLock()
        self.numbers = itertools.count(1)
        self._events = itertools.count(1)
        # Each is a `Place`, which has this controller.
        self.places: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()
        # Tensors that have died at places that no longer exist, with the heads of these.
        self.orphans: list[tuple[tuple[int, int], list[int]]] = []
        # The numbers of streams without references.
        self.dropped_streams: list[int] = []
        self.cache: dict[tuple[Any, ...], tuple[Known, int]] = {}
        self.pinned: set[int] = set()
        self._retired: list[int] = []
        # The recorders of the threads whose calls are recorded.
        self.recorders: dict[int, Recorder] = {}
        # Blocks at whose end the batch is sent. The collector removes one that was interrupted at its end.
        self.held: weakref.WeakSet[Any] = weakref.WeakSet()
        self.failed: Exception | None = None
        self.kept: dict[Any, Any] = {}
        # `Borrow`s that were collected without an end.
        self.forgotten: list[Any] = []
        # Process groups of the program without references.
        self.dropped_groups: list[str] = []
        self._definitions = itertools.count(1)
        self._streams: MutableMapping[Any, int] = weakref.WeakKeyDictionary()
        self._stream_numbers = itertools.count()
        self._targets: dict[tuple[int, ...], int] = {}
        self._outbox = Outbox()
        self._entries = self._outbox.entries
        self._calls = itertools.count()
        # The approximate number of issued commands: several threads may count one.
        self.issued = 0
        # The time at which the issuing thread sends a batch, and its wait for the next one.
        self._due = 0.0
        self._age = FIRST_SECONDS
        self._bytes = 0
        self._marked = 0
        self._marks: deque[Future[Any]] = deque()
        self._ranks: dict[int, Any] = {}
        self._pins: Counter[int] = Counter()
        # Pinned numbers whose tensors have died, and those that were dropped.
        self._unreferenced: set[int] = set()
        self._freed: set[int] = set()
        self._known_definitions: dict[int, Definition] = {}
        self.failures = Failures(self.site_of)
        self.awake = False
        # The name by which the workers know this controller, and the ranks by their procs.
        self.session = ""
        self.rank_of: dict[ProcId, int] = {}
        self._start(procs)

    def _start(self, procs: ProcMesh) -> None:
        """Starts the workers, and what sends to them."""
        view = mesh_view(procs)
        local = _local_ranks(view.hosts)
        self.hosts = view.hosts
        self.size = len(local)
        self.coordinates = list(_coordinates(procs))
        session = self.session = f"{member().proc}/{next(_sessions)}"
        listener = listen(self.failures, session)
        self.rank_of = {proc: rank for rank, proc in enumerate(view.procs)}
        self.workers = procs.spawn("tensor_worker", Worker, tuple(local), listener, session, view.procs, view.hosts)
        self._run = self.workers.run.broadcast
        self._mark_call = self.workers.mark.call
        self._flusher = Flusher(self)

    # Numbers

    def stream_number(self, stream: Any) -> int:
        with self.lock:
            found = self._streams.get(stream)
            if found is None:
                found = self._streams[stream] = next(self._stream_numbers)
                weakref.finalize(stream, _drop_stream, weakref.ref(self), found).atexit = False
            return found

    def target_number(self, ranks: tuple[int, ...]) -> int:
        """Of a set of ranks; 0 is all of them."""
        if len(ranks) == self.size:
            return 0
        with self.lock:
            found = self._targets.get(ranks)
            if found is None:
                found = self._targets[ranks] = len(self._targets) + 1
                self._outbox.targets.append((found, ranks))
            return found

    def define(self, definition: Definition) -> int:
        """The number of a definition, which is sent with the next batch."""
        if isinstance(definition, Apply):
            # A definition that cannot be sent is the error of this call, and not of a later batch.
            dumps(definition)
        with self.lock:
            number = next(self._definitions)
            self._outbox.definitions.append((number, definition))
            self._known_definitions[number] = definition
            return number

    def definition(self, number: int) -> Definition:
        """The definition with this number."""
        return self._known_definitions[number]

    def knows(self, number: int) -> bool:
        """Whether the workers know a definition with this number."""
        return number in self._known_definitions

    def defined(self, definition: Definition) -> int:
        """The same, and equal definitions have the same number for as long as the controller lives."""
        found = self.kept.get(definition)
        if found is None:
            found = self.kept[definition] = self.define(definition)
        return found

    def forget_definition(self, number: int) -> None:
        """The workers forget it, after what was issued so far. Takes no lock."""
        self._known_definitions.pop(number, None)
        self._outbox.forget.append(number)

    def define_known(self, known: Known) -> int:
        """The number of a definition that is not remembered."""
        return self.define(known.call)

    def remember(self, key: tuple[Any, ...], known: Known) -> int:
        """Sends the definition for a signature, and remembers both."""
        with self.lock:
            if (other := self.cache.get(key)) is not None:
                # Another thread has defined it meanwhile.
                return other[1]
            if len(self.cache) >= _SIGNATURES:
                # The new ones are excluded: another thread may hold one and not have issued its command.
                for number in self._retired:
                    if number not in self.pinned:
                        self.forget_definition(number)
                self._retired = [self.cache.pop(old)[1] for old in list(itertools.islice(self.cache, _SIGNATURES // 4))]
            number = self.define(known.call)
            self.cache[key] = (known, number)
            return number

    def site_of(self, number: int) -> Site:
        """The lines that issued an operation; none if it is too long ago."""
        return self._outbox.site_of(number)

    # Commands

    def emit(self, place: PlaceBase, definition: int, inputs: Sequence[int], constants: Sequence[Any], results: Sequence[int]) -> None:
        """Adds an operation to the batch."""
        if self.failed is not None:
            raise self.failed
        if place.released and (place.release_now or len(place.released) >= _RELEASES):
            self._release(place)
        self._entries.append((place.head, definition, inputs, results, constants, current_site()))
        self.issued = count = self.issued + 1
        if self.recorders and (recorder := self.recorder) is not None:
            recorder.record(place, definition, inputs, constants, results)
        if count - self._outbox.sent >= BATCH_COMMANDS or (not count & _CLOCK_MASK and _now() >= self._due):
            if not self.held:
                self._send()
        elif not self.awake:
            self.stir()

    def emit_order(self, first: PlaceBase, then: PlaceBase) -> None:
        """Has the stream of `then` wait until that of `first` has come here."""
        if self.failed is not None:
            raise self.failed
        if (recorder := self.recorder) is not None:
            recorder.order(first, then)
        event = next(self._events)
        # Both commands or none.
        self._entries += ((first.head, SIGNAL, (event,)), (then.head, WAIT, (event,)))

    def emit_all(self, commands: Sequence[tuple[Any, ...]]) -> None:
        """Adds the commands of a recording to the batch, all or none.

        Each has the arguments of `emit` or `emit_order`, or a place and the numbers to free at this point of its order.
        """
        if self.failed is not None:
            raise self.failed
        site = current_site()
        recorder = self.recorder
        entries: list[Any] = []
        operations = 0
        for command in commands:
            if len(command) == 5:
                place, definition, inputs, constants, results = command
                entries.append((place.head, definition, inputs, results, constants, site))
                operations += 1
                if recorder is not None:
                    recorder.record(*command)
            elif isinstance(command[1], PlaceBase):
                event = next(self._events)
                entries += ((command[0].head, SIGNAL, (event,)), (command[1].head, WAIT, (event,)))
                if recorder is not None:
                    recorder.order(*command)
            else:
                entries.append((command[0].head, RELEASE, command[1]))
                if recorder is not None:
                    recorder.released([*command[1]], command[0].head)
        self._entries += entries
        self.issued += operations
        if not self.held and (self.issued - self._outbox.sent >= BATCH_COMMANDS or _now() >= self._due):
            self._send()
        elif not self.awake:
            self.stir()

    def free(self, place: PlaceBase, numbers: Sequence[int]) -> None:
        """Frees entries of the table at this point of the order."""
        with self.lock:
            self._entries.append((place.head, RELEASE, tuple(numbers)))
            self._freed.update(n for n in numbers if n in self._pins)

    def _release(self, place: PlaceBase) -> None:
        """Frees what has died at a place since the last time."""
        with self.lock:
            place.release_now = False
            # Others append meanwhile; the present entries are removed from the front, after they are in the batch: freeing twice does no
            # harm.
            count = len(place.released)
            self._free_dead(place, self._unused(place.released[:count], place.head))
            del place.released[:count]

    def _free_dead(self, place: PlaceBase, numbers: list[int]) -> None:
        if numbers:
            self._entries.append((place.head, RELEASE, tuple(numbers)))

    def _unused(self, numbers: list[int], head: tuple[int, int]) -> list[int]:
        """Those of them, which have died at a place, that no recording uses."""
        if self._pins:
            # Tensors that a recording uses stay.
            self._unreferenced.update(n for n in numbers if n in self._pins)
            numbers = [n for n in numbers if n not in self._pins]
        for recorder in self.recorders.values():
            recorder.released(numbers, head)
        return numbers

    def are_lost(self, numbers: Iterable[int], places: Iterable[PlaceBase]) -> bool:
        """Whether one of these numbers, which are pinned, belongs to no tensor of the program any more, or to one that was dropped.

        They are at these places.
        """
        with self.lock:
            for place in places:
                self._settle(place)
            return not self._unreferenced.isdisjoint(numbers) or not self._freed.isdisjoint(numbers)

    def _settle(self, place: PlaceBase) -> None:
        """Takes note of what has died at a place."""
        if place.released:
            self._release(place)

    def pin(self, number: int) -> None:
        """Keeps an entry of the table, also after the tensor has died."""
        with self.lock:
            self._pins[number] += 1

    def unpin(self, pinned: Mapping[int, PlaceBase]) -> None:
        """Takes back a `pin` of each number, which is at that place. Takes no lock: a recording ends by garbage collection."""
        for number, place in pinned.items():
            self._pins[number] -= 1
            if not self._pins[number]:
                del self._pins[number]
                self._freed.discard(number)
                if number in self._unreferenced:
                    self._unreferenced.discard(number)
                    place.release(number)

    def flush(self) -> None:
        """Sends the batch, if there is one, where the program may wait for the workers: the next one begins a burst."""
        self._send()
        self.begin_burst()

    def begin_burst(self) -> None:
        """The next commands come after a pause."""
        self._due, self._age = 0.0, FIRST_SECONDS

    def _send(self) -> None:
        """Sends the batch, if there is one, and waits if the workers are too far behind."""
        with self.lock:
            if self.failed is not None:
                raise self.failed
            self.take_dead()
            self._send_batch()
            while len(self._marks) > MARKS:  # polls: no, each pass waits for one mark
                self._pass_mark()

    def take_dead(self) -> None:
        """Has what has died freed at this point of the order."""
        self.end_forgotten()
        for place in self.living_places():
            if place.released:
                self._release(place)
        while self.orphans:  # polls: no, each pass takes one
            head, released = self.orphans[0]
            if numbers := self._unused(released, head):
                self._entries.append((head, RELEASE, tuple(numbers)))
            del self.orphans[0]

    def send_old(self) -> bool:
        """Sends a batch that grows no more; False where there is none."""
        if not self.has_old():
            return False
        # A thread that holds the lock sends by itself.
        if self.lock.acquire(blocking=False):
            try:
                self.take_dead()
                self._send_batch()
            finally:
                self.lock.release()
        return True

    def has_old(self) -> bool:
        """Whether there is a batch, or something has died of which the workers do not know."""
        if self.held:
            return False
        ends = self.dropped_groups or self.dropped_streams or self.orphans or any(p.released for p in self.living_places())
        return bool(self._entries or ends)

    def _send_batch(self) -> None:
        """Sends what is in the batch now. Others add to it meanwhile.

        An exception may come from anywhere, as that of Ctrl-C, and a handler of a signal may send in the middle of this: what is not known
        to be sent is sent again, and the workers execute no batch twice.
        """
        # Commands that use these were issued before their ends, and are in the batch.
        streams, groups = tuple(self.dropped_streams), tuple(self.dropped_groups)
        try:
            for batch in self._outbox.batches(self.issued):
                self._due = _now() + self._age
                self._age = min(2 * self._age, GROWING_SECONDS)
                self._run(batch.serial, batch.data, batch.constants, batch.definitions, batch.targets, batch.forget)
                sent = (batch.entries, len(batch.definitions), len(batch.targets), len(batch.forget))
                self._outbox.commit(batch, *map(slice, sent))
                metrics.commands.add(batch.end - batch.first)
                metrics.batch_commands.record(batch.end - batch.first)
                self._bytes += batch.size
                self._mark()
            for name in groups:
                self.workers.drop_group.broadcast(name)
            for number in streams:
                self.workers.drop_stream.broadcast(number)
        except SupervisionError as e:
            raise self.ended(e) from None
        del self.dropped_groups[: len(groups)]
        del self.dropped_streams[: len(streams)]

    def _mark(self) -> None:
        """Asks where the workers are, every so often."""
        if self._outbox.operations - self._marked >= MARK_COMMANDS or self._bytes >= MARK_BYTES:
            self._marked = self._outbox.operations
            self._bytes = 0
            self._marks.append(self._mark_call())
            metrics.lead.set(len(self._marks) * MARK_COMMANDS)
            if len(self._marks) > MARKS:
                # The issuing thread comes soon, and waits.
                self._due = 0.0

    def end_forgotten(self) -> None:
        """Ends the borrows that were collected without an end."""
        if not self.forgotten:
            return
        # These commands are no part of a recording, which keeps its own.
        recorder, self.recorder = self.recorder, None
        try:
            # A borrow of a borrow ends before that one, whichever was collected first.
            while (borrow := next((b for b in self.forgotten if b.can_end), None)) is not None:  # polls: no, each pass ends one
                self.forgotten.remove(borrow)
                borrow.drop()
        finally:
            self.recorder = recorder

    def living_places(self) -> list[PlaceBase]:
        """The places of tensors and activations."""
        return [place for ref in self.places.valuerefs() if (place := ref()) is not None]

    @property
    def recorder(self) -> Recorder | None:
        """What records the commands of this thread: those of other threads are no part of a recording."""
        return self.recorders.get(threading.get_ident()) if self.recorders else None

    @recorder.setter
    def recorder(self, recorder: Recorder | None) -> None:
        if recorder is None:
            self.recorders.pop(threading.get_ident(), None)
        else:
            self.recorders[threading.get_ident()] = recorder

    def uses(self, operands: Sequence[Any], written: Sequence[int]) -> None:
        """Operands of a command that comes, and the places of those that it writes."""
        if (recorder := self.recorder) is not None:
            for place, tensor in enumerate(operands):
                recorder.use(tensor, place in written)

    def refuse_recording(self, what: str) -> None:
        """`TensorMeshError` in a call that is recorded, for what a replay would not repeat."""
        if self.recorder is not None:
            raise TensorMeshError(f"compile: {what} in a recorded call, which a replay would not repeat: do it outside of the function")

    def stir(self) -> None:
        """Has the batch sent soon. Takes no lock."""
        if not self.awake:
            self._flusher.stir()

    def _pass_mark(self) -> None:
        """Waits for the oldest mark."""
        try:
            mark = self._marks[0]
        except IndexError:
            return
        try:
            self._passed(mark)
        except KeyboardInterrupt:
            # The mark is awaited again.
            raise
        except BaseException:
            self._forget_mark(mark)
            raise
        self._forget_mark(mark)

    def _forget_mark(self, mark: Future[Any]) -> None:
        with self.lock:
            # Another thread may have waited for it too.
            if self._marks and self._marks[0] is mark:
                self._marks.popleft()

    def _passed(self, mark: Future[Any]) -> None:
        try:
            found = mark.get()
        except SupervisionError as e:
            raise self.ended(e) from None
        for failure in (failure for of_rank in found.values() for failure in of_rank):
            self.failures.report(failure)

    def ended(self, error: SupervisionError) -> Exception:
        """Takes the mesh as ended; gives what to raise, which is the same for each use of it."""
        self.fail(error)
        return self.failed or error

    def fail(self, error: Exception) -> None:
        """The mesh has ended: nothing is sent to it any more."""
        failure = getattr(error, "failure", None)
        if failure is not None and failure.reason.kind == "stopped":
            stopped = TensorMeshError(f"the mesh of the workers has stopped: {self.procs!r}")
            stopped.__cause__ = error
            error = stopped
        with self.lock:
            if self.failed is None:
                self.failed = error
        if self.has_workers:
            # The flusher ends.
            self._flusher.stir()

    def end_if_stopped(self) -> None:
        """Ends a controller whose procs have ended, as far as this process knows, although nothing was sent to them since."""
        if self.failed is None and self.has_workers and any(end_of(proc) is not None for proc in self.rank_of):
            self.fail(TensorMeshError(f"the mesh of the workers has stopped: {self.procs!r}"))

    def wait(self) -> None:
        """Returns when the workers have executed all commands so far; raises the first failure that nothing has raised yet."""
        self.refuse_recording("a wait")
        with self.failures.before_raise():
            self.flush()
            while self._marks:  # polls: no, each pass takes one mark
                self._pass_mark()
            self._passed(self._mark_call())
            self.failures.raise_first()

    def moment(self) -> int:
        """The number of a call of a function between the operations that were sent and the next one: see `Collectives.moment`."""
        return self._outbox.operations << 24 | 1 << 23 | next(self._calls)

    def lead(self) -> int:
        """The marks that the slowest worker has not passed."""
        return len(self._marks)

    # One rank

    def worker(self, rank: int) -> Any:
        """The actor of a rank, as a mesh of one."""
        found = self._ranks.get(rank)
        if found is None:
            coordinates = self.coordinates[rank]
            found = self._ranks[rank] = self.workers.slice(**coordinates) if coordinates else self.workers
        return found

    def fetch(self, place: PlaceBase, rank: int, numbers: Sequence[int]) -> Future[Any]:
        """The tensors of a rank as it has them at this point of the order: a list, or a `Failure`."""
        self.refuse_recording("a fetch")
        with self.lock:
            self.flush()
            return self.worker(rank).fetch.call_one(place.head[0], tuple(numbers))


def _drop_stream(of: weakref.ref[Controller], number: int) -> None:
    # This runs on any thread, as the end of a tensor.
    controller = of()
    if controller is not None and controller.failed is None:
        controller.dropped_streams.append(number)
        controller.stir()


def _local_ranks(hosts: Sequence[HostId]) -> list[tuple[int, int]]:
    """Of each rank: its place among the ranks of its host, and their number."""
    counts = Counter(hosts)
    seen: Counter[HostId] = Counter()
    local: list[tuple[int, int]] = []
    for host in hosts:
        local.append((seen[host], counts[host]))
        seen[host] += 1
    return local


def _coordinates(procs: ProcMesh) -> Iterable[dict[str, int]]:
    sizes = procs.sizes
    for place in itertools.product(*(range(n) for n in sizes.values())):
        yield dict(zip(sizes, place, strict=True))
