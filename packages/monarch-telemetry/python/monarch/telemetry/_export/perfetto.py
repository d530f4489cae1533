"""A Perfetto trace of a whole job: what every actor and thread did in a time window, on one clock.

Slices are the messages that actors handled and the spans of threads; instants are what was sent, events, failures, and lines of logs of
level error; counters are the resources of hosts and processes. An arrow leads from where a message was sent to where it was handled. A
row of `sent_messages` is a call or a cast, and has no number of the messages at their receivers: a message belongs to the last row that
its sender sent to the receiver's mesh before the message came. Without such a row the arrow begins when the message came.

Rows are joined and sorted as Arrow columns, and become packets a few thousand at a time.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import IO, Any, NamedTuple, cast

from monarch.telemetry._arrow import pa
from monarch.telemetry._export import time_range
from monarch.telemetry._export.nesting import Nesting
from monarch.telemetry._export.perfetto_packets import Packets, Unit, Value
from monarch.telemetry._export.perfetto_tracks import Tracks, looked_up, table_of
from monarch.telemetry.errors import TelemetryError

Rows = Mapping[str, Sequence[Any]]
# Rows that are Python objects at the same time.
_PIECE = 4096
# The last microsecond whose nanoseconds are a signed number of 64 bits.
_LAST_US = ((1 << 63) - 1) // 1000
_ERRORS = ("error", "critical", "fatal")
_COUNTERS: tuple[tuple[str, str, Unit], ...] = (
    ("cpu_pct", "processor", "%"),
    ("rss_bytes", "memory", "bytes"),
    ("threads", "threads", "count"),
    ("fds", "open files", "count"),
)
_GPU_COUNTERS: tuple[tuple[str, str, Unit], ...] = (("gpu_util_pct", "busy", "%"), ("gpu_memory_bytes", "memory", "bytes"))
_NO_OFFSETS: Mapping[str, int] = {}


class _Window(NamedTuple):
    since: int
    until: int

    def has(self, us: int) -> bool:
        return self.since <= us <= self.until

    def clip(self, us: int) -> int:
        return max(self.since, min(us, self.until))


def trace(rows: Rows, *, since_us: int | None = None, until_us: int | None = None, offsets_us: Mapping[str, int] = _NO_OFFSETS) -> bytes:
    """The trace of these rows, as `write` writes it."""
    file = io.BytesIO()
    write(file, rows, since_us=since_us, until_us=until_us, offsets_us=offsets_us)
    return file.getvalue()


def write(
    file: IO[bytes], rows: Rows, *, since_us: int | None = None, until_us: int | None = None, offsets_us: Mapping[str, int] = _NO_OFFSETS
) -> None:
    """Writes the trace of a time window to a binary file: `rows` are record batches by the name of their table.

    Times are microseconds since the epoch; without them the window has all rows. `offsets_us` are added to the times of a host, by its
    name. A slice that the window cuts ends there; a slice without an end is marked `incomplete`, and one that failed `failed`.
    `TelemetryError` for a malformed window, and where the library `perfetto` is missing.
    """
    packets = Packets(file)
    window = _window(rows, since_us, until_us, offsets_us)
    packets.start(window.since)
    work = _Work(rows, packets, Tracks(rows, packets, offsets_us), window)
    work.messages()
    work.spans()
    work.events()
    work.failures()
    work.logs()
    work.resources()
    packets.flush()


def _window(rows: Rows, since_us: int | None, until_us: int | None, offsets_us: Mapping[str, int]) -> _Window:
    if since_us is None or until_us is None:
        first, last = time_range.of_rows(rows) or (0, 0)
        since_us = max(first + min(0, *offsets_us.values(), 0), 0) if since_us is None else since_us
        until_us = max(min(last + max(0, *offsets_us.values(), 0), _LAST_US), since_us) if until_us is None else until_us
    if not 0 <= since_us <= until_us <= _LAST_US:
        raise TelemetryError(f"the time window {since_us} to {until_us} is malformed: 0 <= since_us <= until_us <= {_LAST_US}")
    return _Window(since_us, until_us)


class _Work:
    """The tables of a trace, one after the other."""

    def __init__(self, rows: Rows, packets: Packets, tracks: Tracks, window: _Window) -> None:
        self._rows, self._packets, self._tracks, self._window = rows, packets, tracks, window
        self._pc: Any = import_module("pyarrow.compute")

    # ---- messages

    def messages(self) -> None:
        """What actors sent and handled, and the arrows from the one to the other."""
        pc, tracks = self._pc, self._tracks
        messages = _complete(table_of(self._rows, "messages"), "id", "timestamp_us", "from_actor_id", "to_actor_id")
        offset = looked_up(messages["to_actor_id"], tracks.actor_offset, pa.int64())
        messages = messages.append_column("offset", offset).append_column("came", pc.add(messages["timestamp_us"], offset))
        messages = messages.drop(["timestamp_us"])
        sends = self._sends()
        messages = self._with_sends(messages, sends)
        messages = messages.join(self._states(), "id", right_keys="message_id", join_type="left outer")
        for name in ("active", "end"):
            messages = messages.set_column(messages.schema.get_field_index(name), name, pc.add(messages[name], messages["offset"]))
        messages = messages.append_column("has_flow", self._flows(messages))
        self._sent(messages, sends)
        self._received(messages.filter(_false_if_null(pc, pc.invert(self._is_handled(messages)))))
        self._handled(messages.filter(self._is_handled(messages)))

    def _sends(self) -> Any:
        """Rows of `sent_messages` on the one clock, by sender, mesh and time."""
        sends = _complete(table_of(self._rows, "sent_messages"), "timestamp_us", "sender_actor_id", "actor_mesh_id")
        offset = looked_up(sends["sender_actor_id"], self._tracks.actor_offset, pa.int64())
        columns = [sends["sender_actor_id"], sends["actor_mesh_id"], self._pc.add(sends["timestamp_us"], offset)]
        return pa.table(columns, names=["sender", "mesh", "sent"]).sort_by(
            [("sender", "ascending"), ("mesh", "ascending"), ("sent", "ascending")]
        )

    def _with_sends(self, messages: Any, sends: Any) -> Any:
        """The messages with the number of the row that sent each one (null: none), and its time, which is that of coming without one."""
        pc = self._pc
        meshes = looked_up(messages["to_actor_id"], self._tracks.actor_mesh, pa.uint64())
        places = pa.array(range(messages.num_rows), pa.int64())
        came = pa.table(
            [messages["from_actor_id"], meshes, messages["came"], places, pa.nulls(messages.num_rows, pa.int64())],
            names=["sender", "mesh", "at", "place", "send"],
        )
        numbers = pa.array(range(sends.num_rows), pa.int64())
        sent = pa.table(
            [sends["sender"], sends["mesh"], sends["sent"], pa.nulls(sends.num_rows, pa.int64()), numbers],
            names=["sender", "mesh", "at", "place", "send"],
        )
        # Sent messages precede messages received at the same time: null places are put first by their sign.
        both = pa.concat_tables([sent, came])
        both = both.append_column("last", pc.is_null(both["send"]))
        both = both.sort_by([(name, "ascending") for name in ("sender", "mesh", "at", "last", "send", "place")]).combine_chunks()
        before = pc.fill_null_forward(both["send"])
        same = pc.and_(
            pc.equal(both["sender"], sends["sender"].take(before)),
            pc.equal(both["mesh"], sends["mesh"].take(before)),
        )
        found = pa.table([both["place"], pc.if_else(_false_if_null(pc, same), before, None)], names=["place", "send"])
        found = found.filter(pc.is_valid(found["place"])).sort_by("place")
        time = pc.coalesce(sends["sent"].take(found["send"]), messages["came"])
        return messages.append_column("send", found["send"]).append_column("sent", time)

    def _states(self) -> Any:
        """When each message was begun and ended."""
        pc = self._pc
        events = _complete(table_of(self._rows, "message_status_events"), "timestamp_us", "message_id", "status")
        status, time = events["status"], events["timestamp_us"]
        ended = pc.is_in(status, value_set=pa.array(["complete", "failed"]))
        columns = {
            "message_id": events["message_id"],
            "active": pc.if_else(pc.equal(status, "active"), time, None),
            "end": pc.if_else(ended, time, None),
            "failed": pc.equal(status, "failed"),
        }
        found = pa.table(columns).group_by("message_id").aggregate([("active", "min"), ("end", "min"), ("failed", "any")])
        return found.select(["message_id", "active_min", "end_min", "failed_any"]).rename_columns([*columns])

    def _is_handled(self, messages: Any) -> Any:
        """Whether the handling of each message is in the window, in part at least."""
        pc = self._pc
        begun = _false_if_null(pc, pc.less_equal(messages["active"], self._window.until))
        return pc.and_(begun, _true_if_null(pc, pc.greater_equal(messages["end"], self._window.since)))

    def _flows(self, messages: Any) -> Any:
        """Whether each message has an arrow: both ends are in the window, and it leads forwards in time."""
        pc, window = self._pc, self._window
        since = pa.scalar(window.since, pa.int64())
        reached = pc.if_else(self._is_handled(messages), pc.max_element_wise(messages["active"], since, skip_nulls=False), messages["came"])
        not_later = pc.and_(pc.less_equal(messages["sent"], reached), pc.less_equal(reached, window.until))
        waits = pc.or_(self._is_handled(messages), _true_if_null(pc, pc.greater(messages["active"], window.until)))
        return pc.and_(_false_if_null(pc, pc.and_(pc.greater_equal(messages["sent"], since), not_later)), waits)

    def _sent(self, messages: Any, sends: Any) -> None:
        """An instant for each row of sends, and for each message without one, with the arrows that begin there."""
        pc, packets, tracks = self._pc, self._packets, self._tracks
        arrows = messages.filter(messages["has_flow"])
        alone = arrows.filter(pc.is_null(arrows["send"])).sort_by(
            [("from_actor_id", "ascending"), ("sent", "ascending"), ("id", "ascending")]
        )
        for sender, sent, number, endpoint in _pieces(alone, "from_actor_id", "sent", "id", "endpoint"):
            fields: dict[str, Value] = {"time": "of its receipt"}
            packets.instant(sent, tracks.actor(sender), f"send {endpoint or 'message'}", ["message"], fields, to_flows=[number])
        arrows = arrows.filter(pc.is_valid(arrows["send"])).sort_by([("send", "ascending"), ("id", "ascending")])
        following = _pieces(arrows, "send", "id", "endpoint")
        message = next(following, None)
        for number, (sender, mesh, sent) in enumerate(_pieces(sends, "sender", "mesh", "sent")):
            flows: list[int] = []
            endpoint = None
            while message is not None and message[0] == number:
                flows.append(message[1])
                endpoint = endpoint or message[2]
                message = next(following, None)
            if self._window.has(sent):
                to = tracks.mesh_name(mesh)
                packets.instant(sent, tracks.actor(sender), f"send {endpoint or to}", ["message"], {"to": to}, to_flows=flows)

    def _received(self, messages: Any) -> None:
        """Instants for messages that came in the window, and were not handled in it."""
        pc, window = self._pc, self._window
        waits = _true_if_null(pc, pc.greater(messages["active"], window.until))
        few = messages.filter(pc.and_(waits, _between(pc, messages["came"], window)))
        few = few.sort_by([("to_actor_id", "ascending"), ("came", "ascending"), ("id", "ascending")])
        names = ("to_actor_id", "came", "id", "endpoint", "port_index", "from_actor_id", "has_flow")
        for actor, came, number, endpoint, port, sender, flow in _pieces(few, *names):
            fields: dict[str, Value] = {"from": self._tracks.actor_name(sender), "message": str(number)}
            shown = f"received {_endpoint(endpoint, port)}"
            self._packets.instant(came, self._tracks.actor(actor), shown, ["message"], fields, from_flow=number if flow else None)

    def _handled(self, messages: Any) -> None:
        pc, packets, tracks, window = self._pc, self._packets, self._tracks, self._window
        last = pa.scalar(_LAST_US, pa.int64())
        messages = messages.append_column("order", pc.negate(pc.coalesce(messages["end"], last)))
        messages = messages.sort_by([(name, "ascending") for name in ("to_actor_id", "active", "order", "id")])
        names = ("to_actor_id", "active", "end", "failed", "came", "id", "endpoint", "port_index", "from_actor_id", "has_flow")
        nesting: Nesting | None = None
        before: int | None = None
        for actor, active, end, failed, came, number, endpoint, port, sender, flow in _pieces(messages, *names):
            if nesting is None or actor != before:
                if nesting is not None:
                    nesting.finish()
                nesting = Nesting(lambda us, at, actor=actor: packets.end(us, tracks.actor(actor, at)))
                before = actor
            done = None if end is None or end > window.until else end
            begin = window.clip(active)
            end_us = window.until if done is None else max(window.clip(done), begin)
            fields: dict[str, Value] = {"from": tracks.actor_name(sender), "message": str(number), "queue_us": max(active - came, 0)}
            categories = ["message", *_marks(fields, failed=bool(failed) and done is not None, incomplete=done is None)]
            track = tracks.actor(actor, nesting.place(number, begin, end_us))
            packets.begin(begin, track, _endpoint(endpoint, port), categories, fields, from_flow=number if flow else None)
        if nesting is not None:
            nesting.finish()

    # ---- spans

    def spans(self) -> None:
        pc, packets, tracks, window = self._pc, self._packets, self._tracks, self._window
        names = ("process_id", "thread_name", "begin", "end", "id", "parent_id", "name", "target", "fields_json")
        nesting: Nesting | None = None
        before: tuple[int, str] | None = None
        spans = self._timed_spans()
        seen = _false_if_null(pc, pc.less_equal(spans["begin"], window.until))
        spans = spans.filter(pc.and_(seen, _true_if_null(pc, pc.greater_equal(spans["end"], window.since))))
        spans = spans.append_column("order", pc.negate(pc.coalesce(spans["end"], pa.scalar(_LAST_US, pa.int64()))))
        spans = spans.sort_by([(name, "ascending") for name in ("process_id", "thread_name", "begin", "order", "id")])
        for proc, thread, began, ended, number, parent, name, target, fields_json in _pieces(spans, *names):
            thread = thread or ""
            if nesting is None or (proc, thread) != before:
                if nesting is not None:
                    nesting.finish()
                place = (proc, thread)
                nesting = Nesting(lambda us, at, place=place: packets.end(us, tracks.thread(*place, at)))
                before = place
            done = None if ended is None or ended > window.until else ended
            begin = window.clip(began)
            end = window.until if done is None else max(window.clip(done), begin)
            fields = _fields(fields_json)
            if target:
                fields["target"] = target
            categories = ["span", *_marks(fields, incomplete=done is None)]
            track = tracks.thread(proc, thread, nesting.place(number, begin, end, parent))
            packets.begin(begin, track, name or "span", categories, fields)
        if nesting is not None:
            nesting.finish()

    def _timed_spans(self) -> Any:
        """Spans with `begin` and `end` on the one clock: from the first time that each was entered until it was closed."""
        pc = self._pc
        spans = _complete(table_of(self._rows, "spans"), "process_id", "id", "timestamp_us")
        events = _complete(table_of(self._rows, "span_events"), "process_id", "id", "timestamp_us", "event_type")
        kind, time = events["event_type"], events["timestamp_us"]
        columns = {
            "process_id": events["process_id"],
            "id": events["id"],
            **{name: pc.if_else(pc.equal(kind, name), time, None) for name in ("enter", "exit", "close")},
        }
        wanted = [("enter", "min"), ("enter", "count"), ("exit", "max"), ("exit", "count"), ("close", "max")]
        states = pa.table(columns).group_by(["process_id", "id"]).aggregate(wanted)
        spans = spans.join(states, ["process_id", "id"], join_type="left outer")
        # Without a close, a span has ended if it was exited as often as it was entered.
        left = pc.and_(pc.greater(spans["exit_count"], 0), pc.greater_equal(spans["exit_count"], spans["enter_count"]))
        end = pc.coalesce(spans["close_max"], pc.if_else(_false_if_null(pc, left), spans["exit_max"], None))
        offset = looked_up(spans["process_id"], self._tracks.proc_offset, pa.int64())
        begin = pc.add(pc.coalesce(spans["enter_min"], spans["timestamp_us"]), offset)
        return spans.append_column("begin", begin).append_column("end", pc.add(end, offset))

    # ---- instants and counters

    def events(self) -> None:
        """Events on the thread of the span around them; without a span, or with several of its number, on the track of the job."""
        pc, tracks = self._pc, self._tracks
        spans = _complete(table_of(self._rows, "spans"), "process_id", "id").select(["process_id", "id"])
        only = spans.group_by("id").aggregate([("process_id", "min"), ("process_id", "max")])
        only = only.filter(pc.equal(only["process_id_min"], only["process_id_max"]))
        events = _complete(table_of(self._rows, "events"), "timestamp_us")
        procs = only["process_id_min"].take(pc.index_in(events["parent_span"], value_set=only["id"], skip_nulls=True))
        offset = pc.coalesce(looked_up(procs, tracks.proc_offset, pa.int64()), pa.scalar(0, pa.int64()))
        events = events.append_column("proc", procs).append_column("at", pc.add(events["timestamp_us"], offset))
        events = events.filter(_between(pc, events["at"], self._window))
        for at, proc, thread, name, level, target, fields_json in _pieces(
            events, "at", "proc", "thread_name", "name", "level", "target", "fields_json"
        ):
            fields = _fields(fields_json)
            fields.update({key: value for key, value in (("level", level), ("target", target)) if value})
            track = tracks.job() if proc is None else tracks.thread(proc, thread or "")
            categories = ["event", "error"] if (level or "").lower() in _ERRORS else ["event"]
            self._packets.instant(at, track, name or "event", categories, fields)

    def failures(self) -> None:
        names = ("kind", "first_cause", "mesh_name", "rank", "endpoint", "exit_reason", "message", "traceback")
        for at, host, row in self._facts("failures", "pid", *names):
            pid, kind, first, mesh, rank, endpoint, reason, message, traceback = row
            where = mesh or "" if rank is None else f"{mesh}[{rank}]"
            found = {"kind": kind, "first cause": first, "mesh": where, "endpoint": endpoint}
            found |= {"exit reason": reason, "message": message, "traceback": traceback}
            fields: dict[str, Value] = {key: value for key, value in found.items() if value is not None}
            self._packets.instant(
                at, self._tracks.process(host, pid=pid), f"failure of {where or 'a process'}", ["failure", "error"], fields
            )

    def logs(self) -> None:
        """Lines of level error and above."""
        for at, host, row in self._facts("logs", "level", "pid", "proc", "actor_id", "stream", "logger", "line"):
            level, pid, proc, actor, stream, logger, line = row
            if (level or "").lower() not in _ERRORS:
                continue
            if actor is not None and self._tracks.actor_mesh(actor) is not None:
                track = self._tracks.actor(actor)
            else:
                track = self._tracks.process(host, pid=pid, name=proc)
            found = {"level": level, "stream": stream, "logger": logger, "line": line}
            first = (line or "").strip().partition("\n")[0]
            self._packets.instant(at, track, first[:200] or "log", ["log", "error"], {key: text for key, text in found.items() if text})

    def resources(self) -> None:
        tracks = self._tracks
        names = [column for column, _, _ in (*_COUNTERS, *_GPU_COUNTERS)]
        for at, host, (proc, gpu, *values) in self._facts("resources", "proc", "gpu", *names):
            parent = tracks.process(host, name=proc)
            found = dict(zip(names, values, strict=True))
            prefix = "" if gpu is None else f"GPU {gpu} "
            for column, name, unit in _COUNTERS if gpu is None else _GPU_COUNTERS:
                if found[column] is not None:
                    self._packets.counter(at, tracks.counter(parent, prefix + name, unit), found[column])

    def _facts(self, name: str, *columns: str) -> Iterator[tuple[int, str | None, list[Any]]]:
        """Rows of a table with a column `host` in the window: the time on the one clock, the host, and these columns."""
        pc = self._pc
        table = _complete(table_of(self._rows, name), "timestamp_us")
        offset = pc.coalesce(looked_up(table["host"], self._tracks.host_offset, pa.int64()), pa.scalar(0, pa.int64()))
        table = table.append_column("at", pc.add(table["timestamp_us"], offset))
        table = table.filter(_between(pc, table["at"], self._window)).sort_by("at")
        for at, host, *row in _pieces(table, "at", "host", *columns):
            yield at, host, row


def _pieces(table: Any, *names: str) -> Iterator[tuple[Any, ...]]:
    """Rows as tuples."""
    for batch in table.select(names).to_batches(max_chunksize=_PIECE):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _complete(table: Any, *names: str) -> Any:
    """The rows without a null in these columns: a capture of another version may lack a column."""
    pc: Any = import_module("pyarrow.compute")
    for name in names:
        if table[name].null_count:
            table = table.filter(pc.is_valid(table[name]))
    return table


def _true_if_null(pc: Any, column: Any) -> Any:
    return pc.coalesce(column, pa.scalar(True))


def _false_if_null(pc: Any, column: Any) -> Any:
    return pc.coalesce(column, pa.scalar(False))


def _between(pc: Any, column: Any, window: _Window) -> Any:
    return pc.and_(pc.greater_equal(column, window.since), pc.less_equal(column, window.until))


def _endpoint(endpoint: str | None, port: int | None) -> str:
    return endpoint or ("message" if port is None else f"port {port}")


def _marks(fields: dict[str, Value], **marks: bool) -> list[str]:
    """The marks that are set, which are fields too."""
    found = [name for name, is_set in marks.items() if is_set]
    fields.update(dict.fromkeys(found, True))
    return found


def _fields(fields_json: str | None) -> dict[str, Value]:
    """The fields of a span or event; a text that is no JSON object as it is."""
    if not fields_json or fields_json == "{}":
        return {}
    try:
        found: Any = json.loads(fields_json)
    except (ValueError, RecursionError):
        return {"fields": fields_json}
    if not isinstance(found, dict):
        return {"fields": fields_json}
    return {_valid(name): _shown(value) for name, value in cast("dict[str, Any]", found).items()}


def _shown(value: Any) -> Value:
    if isinstance(value, bool | int | float):
        return value
    return _valid(value) if isinstance(value, str) else json.dumps(value)


def _valid(text: str) -> str:
    """JSON may have half a character, which no text of a trace may have."""
    return text.encode(errors="replace").decode()
