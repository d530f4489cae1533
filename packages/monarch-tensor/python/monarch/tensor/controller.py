"""The controller of the workers of one mesh: numbers, definitions, batches, and the bound on how far it may be ahead."""

from __future__ import annotations

import contextvars
import itertools
import threading
import time
import weakref
from collections import Counter, deque
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from monarch.actor import SupervisionError
from monarch.extension import end_of, is_ending, member
from monarch.extension.mesh import mesh_view
from monarch.extension.pickling import dumps
from monarch.tensor import metrics
from monarch.tensor.answers import Answers
from monarch.tensor.commands import RELEASE, Apply, Segment, encode
from monarch.tensor.errors import TensorMeshError
from monarch.tensor.failures import Failures, listen
from monarch.tensor.frames import Site, current_site
from monarch.tensor.worker.actor import Worker

if TYPE_CHECKING:
    from collections.abc import Iterable, MutableMapping, Sequence

    from monarch.actor import Future, ProcMesh
    from monarch.extension import HostId, ProcId
    from monarch.tensor.commands import Definition
    from monarch.tensor.place import Place
    from monarch.tensor.propagate import Known
    from monarch.tensor.recording import Recorder
    from monarch.tensor.stream import Borrow, Stream
    from monarch.tensor.tensor import Tensor

# The issuing thread sends a batch when it has this many commands; when its first ones come after a pause, so that workers begin; and when
# it is so many seconds since the last one was sent: the first time after a pause, and at most. It looks at the clock with each command
# whose place in the batch has none of the bits of the mask.
BATCH_COMMANDS = 256
FIRST_SECONDS = 500e-6
GROWING_SECONDS = 2e-3
_CLOCK_MASK = 7
# Another thread sends a batch that grows no more. It looks for one after so many seconds, and after twice the time where it has grown: each
# look costs the issuing thread the interpreter's lock.
BATCH_SECONDS = 200e-6
_LONGEST_PAUSE = 10e-3
# How far the controller may be ahead of the slowest worker: four marks, of so many commands or so many bytes each.
MARKS = 4
MARK_COMMANDS = 1_024
MARK_BYTES = 16 << 20
# Entries of the tables are freed together when there are so many, or at the end of the batch; large ones at once.
_RELEASES = 16
# The lines of the program are known of so many of the last operations: of all in the window, and of those that are held for one message.
# More of them cost each operation a miss of the cache. Those of a failure are kept from its report on.
_SITES = 16_384
# Signatures of operators that are remembered; those of the first quarter go when there are more, and the workers forget them the next time.
_SIGNATURES = 16_384

_now = time.monotonic

_sessions = itertools.count()


class Controller:
    """One for each activated mesh of procs. Any thread issues commands; their order is that of the lock.

    `rank` is a worker's place in the activated mesh.
    """

    # Whether there are any: a simulation has none.
    has_workers = True
    # The hosts of the ranks, in their order.
    hosts: Sequence[Any]
    size: int

    def __init__(self, procs: ProcMesh) -> None:
        self.procs = procs
        self.lock = threading.RLock()
        self.numbers = itertools.count(1)
        self.events = itertools.count(1)
        self.places: weakref.WeakValueDictionary[Any, Place] = weakref.WeakValueDictionary()
        # What has died at places that are no more, with the heads of these.
        self.orphans: list[tuple[tuple[int, int], list[int]]] = []
        # The numbers of streams that nothing refers to any more.
        self.dropped_streams: list[int] = []
        self.cache: dict[tuple[Any, ...], tuple[Known, int]] = {}
        self.pinned: set[int] = set()
        self._retired: list[int] = []
        # Of the threads whose calls are recorded.
        self.recorders: dict[int, Recorder] = {}
        self.held = 0
        self.failed: Exception | None = None
        self.kept: dict[Any, Any] = {}
        # Borrows that were collected without an end.
        self.forgotten: list[Borrow] = []
        # Process groups of the program that nothing refers to any more.
        self.dropped_groups: list[str] = []
        self._definitions = itertools.count(1)
        self._streams: MutableMapping[Stream, int] = weakref.WeakKeyDictionary()
        self._stream_numbers = itertools.count()
        self._targets: dict[tuple[int, ...], int] = {}
        self._new_definitions: list[tuple[int, Definition]] = []
        self._new_targets: list[tuple[int, tuple[int, ...]]] = []
        self._forget: list[int] = []
        self._place: Place | None = None
        self._segments: list[Segment] = []
        self._code: list[int] = []
        self._constants: list[Any] = []
        self._count = 0
        # When the issuing thread sends it, and how long it waits for the next one.
        self._due = 0.0
        self._age = FIRST_SECONDS
        self._operations = 0
        self._sites: deque[Site] = deque(maxlen=_SITES)
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
        self.answers = Answers()
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
        # A queue and no event: what dies on any thread, between any two instructions of it, stirs the flusher.
        self._wake: SimpleQueue[None] = SimpleQueue()
        # Commands of the flusher are those of the actor, or client, that made the controller: their order is that of one sender.
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(self._flusher,), name="monarch-tensor-flusher", daemon=True).start()

    # Numbers

    def stream_number(self, stream: Stream) -> int:
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
                self._new_targets.append((found, ranks))
            return found

    def define(self, definition: Definition) -> int:
        """The number of a definition, which is sent with the next batch."""
        if isinstance(definition, Apply):
            # What cannot be sent is the error of this call, and not of a later batch.
            dumps(definition)
        with self.lock:
            number = next(self._definitions)
            self._new_definitions.append((number, definition))
            self._known_definitions[number] = definition
            return number

    def definition(self, number: int) -> Definition:
        """The definition with this number."""
        return self._known_definitions[number]

    def defined(self, definition: Definition) -> int:
        """The same, and equal definitions have the same number for as long as the controller lives."""
        found = self.kept.get(definition)
        if found is None:
            found = self.kept[definition] = self.define(definition)
        return found

    def forget_definition(self, number: int) -> None:
        """The workers forget it, after what was issued so far. Takes no lock."""
        self._known_definitions.pop(number, None)
        self._forget.append(number)

    def remember(self, key: tuple[Any, ...], known: Known) -> int:
        """Sends the definition for a signature, and remembers both."""
        with self.lock:
            if (other := self.cache.get(key)) is not None:
                # Of another thread, meanwhile.
                return other[1]
            if len(self.cache) >= _SIGNATURES:
                # Not the new ones of them: another thread may have one in its hands, and has not issued its command.
                for number in self._retired:
                    if number not in self.pinned:
                        self.forget_definition(number)
                self._retired = [self.cache.pop(old)[1] for old in list(itertools.islice(self.cache, _SIGNATURES // 4))]
            number = self.define(known.call)
            self.cache[key] = (known, number)
            return number

    def site_of(self, number: int) -> Site:
        """The lines that issued an operation; none if it is too long ago."""
        with self.lock:
            back = self._operations - number
            return self._sites[-back] if 0 < back <= len(self._sites) else ()

    # Commands

    def emit(self, place: Place, definition: int, inputs: Sequence[int], constants: Sequence[Any], results: Sequence[int]) -> None:
        """Adds an operation to the batch."""
        with self.lock:
            if self.failed is not None:
                raise self.failed
            if place is not self._place:
                self._turn(place)
            if place.released and (place.release_now or len(place.released) >= _RELEASES):
                self._release(place)
            self._code += (definition, *inputs, *results)
            if constants:
                self._constants += constants
                for value in constants:
                    self._bytes += getattr(value, "nbytes", 0)
            self._sites.append(current_site())
            self._operations += 1
            self._count = count = self._count + 1
            if self.recorders and (recorder := self.recorder) is not None:
                recorder.record(place, definition, inputs, constants, results)
            if count >= BATCH_COMMANDS or (not count & _CLOCK_MASK and _now() >= self._due):
                if not self.held:
                    self._send()
            elif not self.awake:
                self.stir()

    def emit_order(self, place: Place, opcode: int, event: int) -> None:
        """Adds a SIGNAL or a WAIT."""
        with self.lock:
            if self.failed is not None:
                raise self.failed
            if place is not self._place:
                self._turn(place)
            self._code.extend((opcode, event))
            if (recorder := self.recorder) is not None:
                recorder.order(place, opcode, event)

    def free(self, place: Place, numbers: Sequence[int]) -> None:
        """Frees entries of the table at this point of the order."""
        with self.lock:
            if place is not self._place:
                self._turn(place)
            self._code.extend((RELEASE, len(numbers), *numbers))
            self._freed.update(n for n in numbers if n in self._pins)

    def _turn(self, place: Place) -> None:
        """Begins a segment."""
        old = self._place
        if old is not None and old.released:
            self._release(old)
        self._code, self._constants = [], []
        self._segments.append(Segment(*place.head, self._operations, self._code, self._constants))
        self._place = place

    def _release(self, place: Place) -> None:
        numbers = self._dead(place)
        if not numbers:
            return
        self._code.extend((RELEASE, len(numbers), *numbers))

    def _dead(self, place: Place) -> list[int]:
        """The numbers that have died at a place since the last time, and that no recording uses."""
        place.release_now = False
        count = len(place.released)
        # Others append meanwhile; what is there now is taken from the front.
        numbers = place.released[:count]
        del place.released[:count]
        return self._unused(numbers)

    def _unused(self, numbers: list[int]) -> list[int]:
        """Those of them that no recording uses."""
        if self._pins:
            # What a recording uses stays.
            self._unreferenced.update(n for n in numbers if n in self._pins)
            numbers = [n for n in numbers if n not in self._pins]
        for recorder in self.recorders.values():
            numbers = recorder.released(numbers)
        return numbers

    def are_lost(self, numbers: Sequence[int], place: Place) -> bool:
        """Whether one of these numbers, which are pinned, belongs to no tensor of the program any more, or to one that was dropped."""
        with self.lock:
            self._settle(place)
            return not self._unreferenced.isdisjoint(numbers) or not self._freed.isdisjoint(numbers)

    def _settle(self, place: Place) -> None:
        """Takes note of what has died at a place."""
        if place.released:
            if place is not self._place:
                self._turn(place)
            self._release(place)

    def pin(self, number: int) -> None:
        """Keeps an entry of the table, also after the tensor has died."""
        with self.lock:
            self._pins[number] += 1

    def unpin(self, numbers: Sequence[int], place: Place) -> None:
        """Takes back a `pin`. Takes no lock: a recording ends by garbage collection."""
        for number in numbers:
            self._pins[number] -= 1
            if not self._pins[number]:
                del self._pins[number]
                self._freed.discard(number)
                if number in self._unreferenced:
                    self._unreferenced.discard(number)
                    place.released.append(number)

    def flush(self) -> None:
        """Sends the batch, if there is one, where the program may wait for the workers: the next one begins a burst."""
        with self.lock:
            self._send()
            self._due, self._age = 0.0, FIRST_SECONDS

    def _send(self) -> None:
        """Sends the batch, if there is one, and waits if the workers are too far behind."""
        with self.lock:
            if self.failed is not None:
                raise self.failed
            self.end_forgotten()
            # Before what was alive in them is freed: what dies meanwhile comes with the next batch.
            dropped = len(self.dropped_streams)
            for place in self.living_places():
                if place.released:
                    if place is not self._place:
                        self._turn(place)
                    self._release(place)
            while self.orphans:  # polls: no, each pass takes one
                head, released = self.orphans.pop()
                if numbers := self._unused(released):
                    self._segments.append(Segment(*head, self._operations, [RELEASE, len(numbers), *numbers], []))
                    # What comes next is not to come before it.
                    self._place = None
            if not self._segments:
                self._drop(dropped)
                return
            segments = [s for s in self._segments if s.code]
            definitions, self._new_definitions = self._new_definitions, []
            targets, self._new_targets = self._new_targets, []
            forget, self._forget = self._forget, []
            self._segments = []
            self._place = None
            self._due = _now() + self._age
            self._age = min(2 * self._age, GROWING_SECONDS)
            metrics.commands.add(self._count)
            metrics.batch_commands.record(self._count)
            self._count = 0
            data, constants = encode(segments)
            self._bytes += len(data)
            try:
                self._run(data, constants, definitions, targets, forget)
            except SupervisionError as e:
                self.fail(e)
                raise
            self._drop(dropped)
            if self._operations - self._marked >= MARK_COMMANDS or self._bytes >= MARK_BYTES:
                self._marked = self._operations
                self._bytes = 0
                self._marks.append(self._mark_call())
                metrics.lead.set(len(self._marks) * MARK_COMMANDS)
                if len(self._marks) > MARKS:
                    self._passed(self._marks.popleft())

    def end_forgotten(self) -> None:
        """Ends the borrows that were collected without an end."""
        # A borrow of a borrow comes before that one, whichever was collected first.
        while (borrow := next((b for b in self.forgotten if b.can_end), None)) is not None:  # polls: no, each pass ends one
            self.forgotten.remove(borrow)
            borrow.drop()

    def living_places(self) -> list[Place]:
        """The places of tensors and activations."""
        return [place for ref in self.places.valuerefs() if (place := ref()) is not None]

    def _drop(self, streams: int) -> None:
        """Ends groups, and the first so many streams, that nothing refers to any more."""
        while self.dropped_groups:  # polls: no, each pass takes one
            self.workers.drop_group.broadcast(self.dropped_groups.pop())
        for number in self.dropped_streams[:streams]:
            self.workers.drop_stream.broadcast(number)
        del self.dropped_streams[:streams]

    def _has_ends(self) -> bool:
        """Whether something has died of which the workers do not know."""
        return bool(self.dropped_groups or self.dropped_streams or self.orphans or any(p.released for p in self.living_places()))

    def place_of_ranks(self, ranks: tuple[int, ...], stream: Stream) -> Place:
        """Where commands go that ranks of several meshes execute together."""
        key = (ranks, stream.serial)
        found = self.places.get(key)
        if found is None:
            from monarch.tensor.place import Place

            head = (self.stream_number(stream), self.target_number(ranks))
            # What lives there is never used by a call: it has no mesh.
            found = self.places[key] = Place(self, None, stream, head)
        return found

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

    def uses(self, operands: Sequence[Tensor], written: Sequence[int]) -> None:
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
            self.awake = True
            self._wake.put(None)

    def _passed(self, mark: Future[Any]) -> None:
        try:
            found = mark.get()
        except SupervisionError as e:
            self.fail(e)
            raise
        for failure in (failure for of_rank in found.values() for failure in of_rank):
            self.failures.report(failure)

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
        # The flusher ends.
        self._wake.put(None)

    def end_if_stopped(self) -> None:
        """Ends a controller whose procs have ended, as far as this process knows, although nothing was sent to them since."""
        if self.failed is None and self.has_workers and any(end_of(proc) is not None for proc in self.rank_of):
            self.fail(TensorMeshError(f"the mesh of the workers has stopped: {self.procs!r}"))

    def wait(self) -> None:
        """Returns when the workers have executed all commands so far; raises the first failure that nothing has raised yet."""
        self.refuse_recording("a wait")
        with self.lock:
            self.flush()
            while self._marks:  # polls: no, each pass takes one mark
                self._passed(self._marks.popleft())
            mark = self._mark_call()
        self._passed(mark)
        self.answers.settle()
        self.failures.raise_first()

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

    def fetch(self, place: Place, rank: int, numbers: Sequence[int]) -> Future[Any]:
        """The tensors of a rank as it has them at this point of the order: a list, or a `Failure`."""
        self.refuse_recording("a fetch")
        with self.lock:
            self.flush()
            return self.worker(rank).fetch.call_one(place.head[0], tuple(numbers))

    # The thread that sends what is old

    def _flusher(self) -> None:
        while self.failed is None:  # polls: no, the queue has an item with the first command of a batch
            self._wake.get()
            idle, pause = 0, BATCH_SECONDS
            known = self._operations
            while idle < 10 and self.failed is None:  # polls: for 2 ms after the last command, then it waits for the queue
                time.sleep(pause)  # sleeps: the age of a batch
                if is_ending():
                    return
                # The issuing thread has the lock where it is busy, and sends by itself.
                if not self.lock.acquire(blocking=False):
                    idle, pause = 0, min(2 * pause, _LONGEST_PAUSE)
                    continue
                try:
                    if self._operations != known:
                        known, idle, pause = self._operations, 0, min(2 * pause, _LONGEST_PAUSE)
                        continue
                    pause = BATCH_SECONDS
                    idle += 1
                    if not self.held and (self._segments or self._has_ends()):
                        idle = 0
                        self._send()
                    if idle >= 10 or self.failed is not None:
                        self._due, self._age = 0.0, FIRST_SECONDS
                        self.awake = False
                        # What has died in between has seen this thread awake.
                        if not self.held and self._has_ends():
                            idle, self.awake = 0, True
                except Exception as e:
                    self.fail(e)
                finally:
                    self.lock.release()


def _drop_stream(of: weakref.ref[Controller], number: int) -> None:
    # On any thread, as the end of a tensor.
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
