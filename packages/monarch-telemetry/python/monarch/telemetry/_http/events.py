"""Server-sent events: failures, and actors that are made, stop or fail, by statements that are repeated while a client listens.

Rows may come late, with the time of when they happened. Each look goes back some seconds therefore, and leaves out what it has sent.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

from monarch.telemetry._asking import Asking
from monarch.telemetry._http.json_rows import rows
from monarch.telemetry._http.problems import Problem
from monarch.telemetry.errors import TelemetryError

CLIENTS = 32
# The most events that wait for a client; a slower client loses the rest, and gets their number.
WAITING = 1_000
# Seconds between two looks, between two keep-alives of a quiet stream, and that rows may be late.
LOOK_SECONDS, QUIET_SECONDS, LATE_SECONDS = 1.0, 10.0, 10.0
_MOST_ROWS = 1_000
_SECOND = 1_000_000

_KINDS = {
    "failure": "SELECT * FROM failures",
    "status": "SELECT e.id, e.timestamp_us, e.actor_id, e.new_status, e.reason, a.full_name, a.display_name, a.mesh_id, a.rank"
    # An actor changes between these with each message.
    " FROM actor_status_events e LEFT JOIN actors a ON a.id = e.actor_id WHERE e.new_status NOT IN ('Idle', 'Processing')",
}


class Event(NamedTuple):
    """Of one row; `at` is its time in microseconds since the epoch."""

    kind: str
    at: int
    row: dict[str, Any]

    def encode(self) -> bytes:
        """The row with its ids as texts; the id of an event is its time, from which a client goes on."""
        return f"id: {self.at}\nevent: {self.kind}\ndata: {json.dumps(self.row, separators=(',', ':'))}\n\n".encode()


class Look:
    """Finds events that have not been found yet. One thread at a time."""

    def __init__(self, engine: Asking, clock: Callable[[], float]) -> None:
        self._engine, self._clock = engine, clock
        # The seen events, with the time of each.
        self._seen: dict[tuple[str, str], int] = {}
        self._since = int(clock() * 1e6)

    def find(self) -> list[Event]:
        """In the order of their times. `TelemetryError`."""
        found: list[Event] = []
        for kind, sql in _KINDS.items():
            table = self._engine.ask(_since(sql, self._since - int(LATE_SECONDS * _SECOND)), timeout=5.0).table
            for row in rows(table, ids_as_text=True):
                key = (kind, str(row["id"]))
                if key in self._seen:
                    continue
                self._seen[key] = int(row["timestamp_us"])
                found.append(Event(kind, int(row["timestamp_us"]), row))
        # Not the time of this process: hosts have their own clocks.
        self._since = max([self._since, *(event.at for event in found)])
        # No later look requests older events.
        oldest = self._since - int(LATE_SECONDS * _SECOND)
        self._seen = {key: at for key, at in self._seen.items() if at >= oldest}
        return sorted(found, key=lambda event: event.at)

    def begin(self) -> None:
        """Leaves out what is there already."""
        self.find()

    def before(self, after: int) -> list[Event]:
        """What a client missed that has come back: events after a time."""
        found = [
            Event(kind, int(row["timestamp_us"]), row)
            for kind, sql in _KINDS.items()
            for row in rows(self._engine.ask(_since(sql, after + 1), timeout=5.0).table, ids_as_text=True)
        ]
        return sorted(found, key=lambda event: event.at)[-WAITING:]


def _since(sql: str, since: int) -> str:
    """The latest rows since a time."""
    return f"SELECT * FROM ({sql}) WHERE timestamp_us >= {since} ORDER BY timestamp_us DESC LIMIT {_MOST_ROWS}"


class _Client:
    def __init__(self) -> None:
        self.events: asyncio.Queue[Event | None] = asyncio.Queue(WAITING)
        self.lost = 0

    def put(self, event: Event | None) -> None:
        try:
            self.events.put_nowait(event)
        except asyncio.QueueFull:
            self.lost += 1


class Events:
    """The streams of one application, in one event loop; `run` runs what blocks in a thread."""

    def __init__(
        self,
        engine: Asking,
        run: Callable[[Callable[[], Any], float], Awaitable[Any]],
        *,
        clock: Callable[[], float],
        look_seconds: float = LOOK_SECONDS,
        quiet_seconds: float = QUIET_SECONDS,
    ) -> None:
        self._engine, self._run, self._clock = engine, run, clock
        self._look_seconds, self._quiet_seconds = look_seconds, quiet_seconds
        self._clients: set[_Client] = set()
        self._looking: asyncio.Task[None] | None = None
        self._look: Look | None = None
        self._closed = False

    async def stream(self, after: int | None) -> AsyncIterator[bytes]:
        """The text of a stream, from now on or from after a time. `Problem` 503 where there are too many clients."""
        if self._closed or len(self._clients) >= CLIENTS:
            raise Problem.unavailable("the server is stopping" if self._closed else f"there are {CLIENTS} clients of events already")
        client = _Client()
        self._clients.add(client)
        try:
            await self._ready()
            missed = await self._missed(after)
        except BaseException:
            self._leave(client)
            raise
        return self._lines(client, missed)

    async def _ready(self) -> None:
        """Looks go on: what there is now is known, so that a client gets what comes."""
        if self._looking is None or self._looking.done():
            look = Look(self._engine, self._clock)
            self._look = look
            await self._run(look.begin, 10.0)
            if self._looking is None or self._looking.done():
                self._looking = asyncio.create_task(self._looks(look))

    async def _missed(self, after: int | None) -> list[Event]:
        if after is None or self._look is None:
            return []
        return await self._run(lambda: Look(self._engine, self._clock).before(after), 10.0)

    async def _lines(self, client: _Client, missed: list[Event]) -> AsyncIterator[bytes]:
        try:
            yield b": events of the job\n\n"
            sent = {(event.kind, event.row["id"]) for event in missed}
            for event in missed:
                yield event.encode()
            while not self._closed:
                try:
                    async with asyncio.timeout(self._quiet_seconds):
                        event = await client.events.get()
                except TimeoutError:
                    yield b": quiet\n\n"
                    continue
                if event is None:
                    return
                if (event.kind, event.row["id"]) not in sent:
                    yield event.encode()
                if client.lost and client.events.empty():
                    lost, client.lost = client.lost, 0
                    yield f"event: lost\ndata: {lost}\n\n".encode()
        finally:
            self._leave(client)

    def _leave(self, client: _Client) -> None:
        self._clients.discard(client)
        if not self._clients and self._looking is not None:
            self._looking.cancel()
            self._looking = None

    async def _looks(self, look: Look) -> None:
        while True:
            await asyncio.sleep(self._look_seconds)
            try:
                found = await self._run(look.find, 10.0)
            except (TelemetryError, Problem):
                continue  # a host may be busy; the next look finds the events that this one missed
            for event in found:
                for client in list(self._clients):
                    client.put(event)

    def close(self) -> None:
        """Ends all streams."""
        self._closed = True
        for client in list(self._clients):
            if client.events.full():
                client.events.get_nowait()
            client.put(None)
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
