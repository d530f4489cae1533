"""Messages: rows of `sent_messages`, `messages`, `message_status_events` and the changes of `actor_status_events` that come of them.

A message of a call is identified by its sender, the number of the call and its receiver. One without a waiting caller has no number: it is
the n-th of its sender to an actor since reading began, and the n-th that the actor begins and ends, as mailboxes keep the order. The
counts of an actor are dropped when it ends.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from monarch.telemetry._arrow import pa, pc
from monarch.telemetry._ingest.broadcasts import FIRST
from monarch.telemetry._ingest.ids import ACTOR_EVENT, BROADCAST, EVENT, MESSAGE, U64, actor_ids, event_ids, mixed, mixed_columns
from monarch.telemetry._ingest.regions import WITHOUT_DIMENSIONS, view_json
from monarch.telemetry._ingest.rows import Rows, repeated, text
from monarch.telemetry._ingest.running import Running
from monarch.telemetry._ingest.sampling import Sampling
from monarch.telemetry._tables.events import ACTOR_STATUS_EVENTS, MESSAGE_STATUS_EVENTS, MESSAGES, SENT_MESSAGES

# The most pairs of receiver and sender whose messages without a call are counted; beyond it, those of the receivers with the oldest
# messages are dropped.
_MOST_COUNTED = 20_000
# The offset from the numbers of pairs that were dropped: no number is used twice.
_AGAIN = 1 << 40
# Methods of the first and the last message of an actor.
_INIT, _STOP = "__init__", ""
_LIFE = pa.array([_INIT, _STOP], pa.string())
# The positions of the counts in the list of a pair, after the number from which it counts.
_STATES = {"queued": 1, "active": 2, "complete": 3}


class Alone:
    """Counts the messages without a waiting caller: for each state of a message, by receiver and sender, while both live."""

    def __init__(self, most: int = _MOST_COUNTED) -> None:
        self._most = most
        # By process and mesh of the receiver, the most recently counted one last; then by sender.
        self._counts: OrderedDict[tuple[int, int], dict[int, list[int]]] = OrderedDict()
        self._first = 0
        self._pairs = 0

    def __len__(self) -> int:
        """Pairs that are kept."""
        return self._pairs

    def ids(self, state: str, procs: list[int], meshes: list[int], senders: list[int]) -> list[int]:
        found: list[int] = []
        at = _STATES[state]
        for proc, mesh, sender in zip(procs, meshes, senders, strict=True):
            counts = self._counts.setdefault((proc, mesh), {})
            self._counts.move_to_end((proc, mesh))
            pair = counts.get(sender)
            if pair is None:
                pair = counts[sender] = [self._first, 0, 0, 0]
                self._pairs += 1
            pair[at] += 1
            found.append(mixed(BROADCAST, proc, mesh, sender, pair[0] + pair[at]))
        while self._pairs > self._most:
            _, gone = self._counts.popitem(last=False)
            self._pairs -= len(gone)
            self._first += _AGAIN
        return found

    def forget(self, proc: int, mesh: int) -> None:
        """An actor has ended."""
        self._pairs -= len(self._counts.pop((proc, mesh), ()))

    def forget_proc(self, proc: int) -> None:
        """A process has ended, and all its actors and senders with it."""
        for receiver in [receiver for receiver in self._counts if receiver[0] == proc]:
            self.forget(*receiver)
        for counts in self._counts.values():
            self._pairs -= counts.pop(proc, None) is not None


class Messages:
    """Not for several threads at once."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._alone = Alone()
        self.running = Running()
        # The last sent calls, which may continue in the next batch: one row is kept of a call to several receivers.
        self._last_sent: Any = None

    def batches(self, rows: Mapping[str, Rows], shapes: Mapping[int, str]) -> dict[str, list[Any]]:
        """The new rows by table, of events that `Broadcasts` has marked.

        `shapes` has the regions of meshes, as JSON, by their number.
        """
        found: dict[str, list[Any]] = {"sent_messages": [], "messages": [], "message_status_events": [], "actor_status_events": []}
        for kind in ("message.sent", "cast.sent"):
            if kind in rows:
                # Messages of the program: the first message of an actor and its stop are not.
                sent = rows[kind].where(pc.invert(pc.is_in(rows[kind]["method"], value_set=_LIFE)))
                found["sent_messages"].append(self._sent(sent, shapes))
        if "message.received" in rows:
            received = rows["message.received"]
            ids = self._ids("queued", received)
            received, ids = self._sampled(received, ids, count=True)
            found["messages"].append(_messages(received, ids))
            found["message_status_events"].append(_states(received, ids, "queued"))
        begun_ids = ended_ids = None
        if "message.begun" in rows:
            begun_ids = self._ids("active", rows["message.begun"])
            begun, ids = self._sampled(rows["message.begun"], begun_ids)
            found["message_status_events"].append(_states(begun, ids, "active"))
            found["actor_status_events"].append(_actor_states(begun, _begun_state(begun["method"])))
        if "message.handled" in rows:
            ended_ids = self._ids("complete", rows["message.handled"])
            handled, ids = self._sampled(rows["message.handled"], ended_ids)
            failed = pc.equal(handled["failed"], U64[1])
            found["message_status_events"].append(_states(handled, ids, pc.if_else(failed, "failed", "complete")))
            found["actor_status_events"].append(_actor_states(handled, "Idle"))
        self.running.change(rows.get("message.begun"), begun_ids, ended_ids)
        return {name: [batch for batch in batches if batch.num_rows] for name, batches in found.items()}

    def forget(self, proc: int, mesh: int | None = None) -> None:
        """A process has ended, or its actor of this mesh."""
        self.running.forget(proc, mesh)
        if mesh is None:
            self._alone.forget_proc(proc)
        else:
            self._alone.forget(proc, mesh)

    @property
    def counted(self) -> int:
        """Pairs of a receiver and a sender of which messages without a waiting caller are counted."""
        return len(self._alone)

    def _sent(self, sent: Rows, shapes: Mapping[int, str]) -> Any:
        calls = mixed_columns(MESSAGE, sent["proc"], sent["call"])
        alone = mixed_columns(MESSAGE, sent["proc"], sent["call"], sent["number"])
        ids = pc.if_else(pc.equal(sent["call"], U64[0]), alone, calls)
        first = pc.and_(_firsts(ids), sent[FIRST])
        if self._last_sent is not None:
            first = pc.and_(first, pc.invert(pc.is_in(ids, value_set=self._last_sent)))
        # A copy: a slice would keep the ids of all.
        self._last_sent = pa.concat_arrays([ids[-1000:]])
        keep = pc.and_(first, self._sampling.mask(sent["proc"], ids))
        if not pc.all(keep).as_py():
            sent, ids = sent.where(keep), ids.filter(keep)
        shown = _views(sent, shapes)
        return _batch(SENT_MESSAGES, ids, sent["us"], actor_ids(sent["proc"], sent["sender"]), sent["mesh"], shown, shown)

    def _ids(self, state: str, rows: Rows) -> Any:
        """Of the messages at their receiver."""
        calls = mixed_columns(MESSAGE, rows["peer"], rows["call"], rows["proc"])
        alone = pc.equal(rows["call"], U64[0])
        if not pc.any(alone).as_py():
            return calls
        few = rows.where(alone)
        ids = self._alone.ids(state, few["proc"].to_pylist(), few["mesh"].to_pylist(), few["peer"].to_pylist())
        return pc.replace_with_mask(calls, alone, pa.array(ids, pa.uint64()))

    def _sampled(self, rows: Rows, ids: Any, *, count: bool = False) -> tuple[Rows, Any]:
        if count:
            self._sampling.count(rows["proc"], rows["us"])
        # The first and the last message of an actor are never omitted: its status would be wrong for long.
        keep = pc.or_(self._sampling.mask(rows["proc"], ids), pc.is_in(rows["method"], value_set=_LIFE))
        return (rows, ids) if pc.all(keep).as_py() else (rows.where(keep), ids.filter(keep))


def _views(sent: Rows, shapes: Mapping[int, str]) -> Any:
    """The part of the mesh that each was sent to, as JSON: of those to a whole mesh its shape."""
    meshes, offsets = sent["mesh"], sent["offset"]
    distinct = pc.unique(meshes)
    texts = pa.array([shapes.get(mesh, WITHOUT_DIMENSIONS) for mesh in distinct.to_pylist()], pa.string())
    shown = texts.take(pc.index_in(meshes, value_set=distinct))
    is_part = pc.not_equal(offsets, U64[0])
    if not pc.any(is_part).as_py():
        return shown
    dims = text(sent["dims"]).filter(is_part)
    kinds = pc.unique(dims)
    # One number for each distinct part.
    numbers = pc.add(pc.multiply(offsets.filter(is_part), pa.scalar(len(kinds), pa.uint64())), pc.index_in(dims, value_set=kinds))
    distinct = pc.unique(numbers)
    places = [divmod(number, len(kinds)) for number in distinct.to_pylist()]
    texts = pa.array([view_json(offset - 1, kinds[kind].as_py()) for offset, kind in places], pa.string())
    return pc.replace_with_mask(shown, is_part, texts.take(pc.index_in(numbers, value_set=distinct)))


def _firsts(ids: Any) -> Any:
    """Whether each is the first of its value."""
    distinct = pc.unique(ids)
    if len(distinct) == len(ids):
        return pa.repeat(pa.scalar(True), len(ids))
    # `unique` returns values in the order of their first occurrences, so a first one is larger than all before it.
    order = pc.index_in(ids, value_set=distinct)
    before = pa.concat_arrays([pa.array([-1], pa.int32()), pc.cumulative_max(order)[:-1]])
    return pc.greater(order, before)


def _messages(rows: Rows, ids: Any) -> Any:
    return _batch(
        MESSAGES,
        ids,
        rows["us"],
        actor_ids(rows["peer"], rows["sender"]),
        actor_ids(rows["proc"], rows["mesh"]),
        rows["method"],
        pa.nulls(rows.count, pa.uint64()),
    )


def _states(rows: Rows, ids: Any, state: Any) -> Any:
    states = repeated(state, pa.string(), rows.count) if isinstance(state, str) else state
    return _batch(MESSAGE_STATUS_EVENTS, event_ids(EVENT, rows["proc"], rows["number"]), rows["us"], ids, states)


def _begun_state(methods: Any) -> Any:
    """Of an actor that begins a message of this method; a name that was overwritten is none of these two."""
    other = pc.if_else(pc.fill_null(pc.equal(methods, _STOP), False), "Stopping", "Processing")
    return pc.if_else(pc.fill_null(pc.equal(methods, _INIT), False), "Initializing", other)


def _actor_states(rows: Rows, state: Any) -> Any:
    ids = event_ids(ACTOR_EVENT, rows["proc"], rows["number"])
    actors = actor_ids(rows["proc"], rows["mesh"])
    return _batch(
        ACTOR_STATUS_EVENTS,
        ids,
        rows["us"],
        actors,
        repeated(state, pa.string(), rows.count) if isinstance(state, str) else state,
        pa.nulls(rows.count, pa.string()),
    )


def _batch(table: Any, *columns: Any) -> Any:
    schema = table.schema()
    filled = [
        text(column) if field.type == pa.string() and not field.nullable else column for field, column in zip(schema, columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(filled, schema=schema)
