"""What a collector keeps between looks: states of what lives, and none of actors, processes and calls that have ended."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable
from typing import Any

import pytest

from monarch.telemetry._arrow import pa
from monarch.telemetry._ingest import entities
from monarch.telemetry._ingest import entities as entities_module
from monarch.telemetry._ingest import ingest as ingest_module
from monarch.telemetry._ingest.broadcasts import Broadcasts
from monarch.telemetry._ingest.ingest import Ingest
from monarch.telemetry._ingest.messages import Alone, Messages
from monarch.telemetry._ingest.rows import Part, Rows
from monarch.telemetry._ingest.sampling import Sampling
from monarch.telemetry._store.entities import Entities
from monarch.telemetry._store.store import Store
from monarch.telemetry._tables.catalog import TABLES

HOST, CLIENT, PROC, SHORT = 11, 21, 31, 41
_KINDS = {int: pa.uint64(), str: pa.string(), bytes: pa.binary()}
_COLUMNS = {"us": pa.int64(), "time": pa.int64(), "trace": pa.binary(24), "thread": pa.uint32()}
_numbers = itertools.count(1)


def rows(*events: dict[str, Any]) -> Rows:
    filled = [
        {"proc": PROC, "number": next(_numbers), "thread": 7, "trace": bytes(24), "us": 1_000_000, "offset": 0, "dims": "", **event}
        for event in events
    ]
    columns = {
        name: pa.array([one[name] for one in filled], _COLUMNS.get(name) or _KINDS[type(value)]) for name, value in filled[0].items()
    }
    return Rows(len(filled), columns)


class Looked:
    """The events of a process of one look."""

    pid, lost, columns = 77, 0, dict[str, Any]()

    def __init__(self, proc: int, events: dict[str, Rows], ended: bool) -> None:
        self.proc, self.ended, self.parts = proc, ended, list[Part]()
        for kind, found in events.items():
            columns = {name: column for name, column in found.columns.items() if name != "us"}
            self.parts.append(Part(kind, found.count, {**columns, "time": pa.array([1_000_000_000] * found.count, pa.int64())}))

    def __len__(self) -> int:
        return sum(part.rows for part in self.parts)


class Watched:
    """An ingest that is given events by their type."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def parts_of(looked: Looked) -> list[Part]:
            return looked.parts

        monkeypatch.setattr(ingest_module, "parts_of", parts_of)
        history = {name: table.schema() for name, table in TABLES.items() if table.retention in ("history", "on demand")}
        entities = {name: table.schema() for name, table in TABLES.items() if table.retention == "entities"}
        self.store = Store(history, entities, clock=lambda: 2.0)
        self.ingest: Any = Ingest(self.store, HOST, "here", CLIENT, clock=lambda: 2.0)

    def look(self, events: dict[str, Rows], *, proc: int = PROC, ended: bool = False) -> None:
        self.ingest.take(Looked(proc, events, ended))
        self.ingest.flush()

    def held(self) -> dict[str, int]:
        assert self.ingest.errors == 0
        return self.ingest.held()


def _proc(proc: int) -> dict[str, Any]:
    return {"proc": proc, "id": 1000 + proc, "mesh": f"workers{proc}-1", "rank": 0, "pid": proc, "age": 0}


def _life(mesh: int, *, proc: int = PROC) -> dict[str, Rows]:
    """An actor begins, gets messages with and without a caller and a trace, is in the middle of both, and ends."""
    trace = mesh.to_bytes(8, "little") * 3
    calls = [{"call": 0, "trace": bytes(24)}, {"call": mesh, "trace": trace}]
    message = {"proc": proc, "mesh": mesh, "method": "step", "rank": 0, "peer": CLIENT}
    return {
        "actor.start": rows({"proc": proc, "mesh": mesh, "actor": f"<root>.<A a{mesh}>", "age": 0}),
        "message.received": rows(*({**message, **call, "sender": 0, "bytes": 1, "depth": 1} for call in calls)),
        "message.begun": rows(*({**message, **call, "parent": 0} for call in calls)),
        "actor.end": rows({"proc": proc, "mesh": mesh, "actor": "x", "kind": "stopped", "detail": ""}),
    }


def _lives(watched: Watched, meshes: Iterable[int]) -> None:
    for mesh in meshes:
        watched.look(_life(mesh))


def test_actors_that_have_ended_leave_no_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entities_module, "MOST_ENDED", 5)
    watched = Watched(monkeypatch)
    watched.ingest.facts._meshes._most = 5
    watched.look({"proc.start": rows(_proc(PROC))})
    _lives(watched, range(100, 110))
    watched.ingest.known()
    before = watched.held()
    _lives(watched, range(200, 260))
    watched.ingest.known()
    # Spans of ended ones are kept until others replace them.
    assert {**watched.held(), "call spans": 0} == {**before, "call spans": 0}
    assert before["messages counted"] == before["endpoints running"] == before["actors"] == 0
    assert watched.held()["call spans"] == len(watched.ingest._call_spans._known)


def test_procs_that_have_ended_leave_no_states(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    watched.look({"proc.start": rows(_proc(PROC)), **{kind: of for kind, of in _life(5).items() if kind != "actor.end"}})
    before = watched.held()
    for proc in range(SHORT, SHORT + 40):
        life = _life(1000 + proc, proc=proc)
        if proc % 2:  # its actor ends with it
            del life["actor.end"]
        sent = {"proc": proc, "mesh": 5, "method": "step", "sender": 0, "bytes": 1, "trace": bytes(24), "call": 9, "rank": 0, "parent": 0}
        watched.look({"proc.start": rows(_proc(proc)), **life, "message.sent": rows({**sent, "peer": PROC})}, proc=proc)
        received = {"mesh": 5, "method": "step", "rank": 0, "peer": proc, "call": 0, "sender": 0, "bytes": 1, "depth": 1}
        watched.look({"message.received": rows(received)})
        end = {"proc.end": rows({"proc": HOST, "peer": proc, "kind": "exit_code", "number": 1, "pid": proc, "detail": ""})}
        # The ring of a process and that of the agent, which has its end, are read in any order.
        if proc % 3:
            watched.look({}, proc=proc, ended=True)
            watched.look(end, proc=HOST)
        else:
            watched.look(end, proc=HOST)
            watched.look({}, proc=proc, ended=True)
    after = watched.held()
    assert {**after, "meshes": 0} == {**before, "meshes": 0}
    assert after["meshes"] <= entities.ENDED


def test_message_ids_are_bounded_and_unique() -> None:
    alone = Alone(most=10)
    seen: list[int] = []
    for turn in range(3):
        for mesh in range(40):
            seen += (ids := alone.ids("queued", [PROC] * 2, [mesh] * 2, [CLIENT] * 2))
            assert alone.ids("active", [PROC] * 2, [mesh] * 2, [CLIENT] * 2) == ids, turn
            assert len(alone) <= 10
    assert len(set(seen)) == len(seen) == 240


def test_threads_that_send_no_more_are_forgotten() -> None:
    kept = Broadcasts()
    for thread in range(50):
        fields = {"mesh": 5, "method": "step", "rank": 0, "sender": 0, "call": 0, "bytes": 1, "peer": PROC}
        kept.mark({"message.sent": rows({**fields, "thread": thread, "us": thread * 1_000_000})})
    assert len(kept) == 11  # of the last ten seconds


def test_ids_of_the_last_look_share_no_memory() -> None:
    messages = Messages(Sampling(None))
    fields = {"mesh": 5, "method": "step", "rank": 0, "sender": 0, "bytes": 1, "peer": PROC}
    sent = rows(*({**fields, "call": number} for number in range(1, 20_000)))
    messages.batches(Broadcasts().mark({"message.sent": sent}), {})
    assert messages._last_sent.get_total_buffer_size() < 9000  # pyright: ignore[reportPrivateUsage]


def test_entity_rows_share_equal_values() -> None:
    things = Entities(pa.schema([("id", pa.uint64()), ("shape", pa.string())]), ended=100)
    for id in range(3):
        things.put(id, {"id": id, "shape": "".join(["{", '"gpus": 4}'])})
    shapes = [(things.get(id) or {})["shape"] for id in range(3)]
    assert shapes[0] is shapes[1] is shapes[2]


def test_entity_row_is_smaller_than_a_dict() -> None:
    meshes = Entities(TABLES["meshes"].schema())
    values = {field.name: 1 << 40 if field.type == pa.uint64() else "x" for field in meshes.schema if field.type != pa.int64()}
    meshes.put(1, values)
    (row,) = meshes._living.values()  # pyright: ignore[reportPrivateUsage]
    assert sys.getsizeof(row) * 2 < sys.getsizeof(dict(values))
