"""The application with its dashboard over the made-up cluster, on loopback.

Paths below `/control/` change the cluster: `silent`, `answering`, `line/TEXT`. They are of this server, not of the application.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, NamedTuple, cast
from urllib.parse import unquote

import uvicorn
from support.made_up_cluster import Cluster

from monarch.telemetry._dashboard.files import files
from monarch.telemetry._http.app import App
from monarch.telemetry._http.auth import Names, Tokens, new_tokens
from monarch.telemetry._http.parts import Actions, Parts, Stacks
from monarch.telemetry._http.sql_nodes import SqlNodes
from monarch.telemetry._stacks.merged import StackReport

NODE_RANKS = 40


class Served(NamedTuple):
    url: str
    tokens: Tokens
    cluster: Cluster
    actions: list[tuple[str, object]]


class _Actions:
    """Notes what was asked for."""

    def __init__(self) -> None:
        self.done: list[tuple[str, object]] = []

    def stop_mesh(self, mesh: str, *, reason: str | None) -> dict[str, Any]:
        self.done.append(("stop_mesh", mesh))
        return {"done": True, "detail": f"{mesh} is stopping"}


class _Stacks:
    def merged(self, mesh: str | None, *, native: bool, locals: bool, timeout: float) -> dict[str, Any]:
        return STACKS

    def profile_svg(
        self, proc_id: int, *, duration_s: float, rate_hz: int, native: bool, threads: bool, nonblocking: bool, timeout: float
    ) -> bytes:
        return b'<svg xmlns="http://www.w3.org/2000/svg" width="400" height="40"><rect width="400" height="40" fill="orange"/></svg>'


def _entry(procs: int, ranks: str, *calls: str) -> dict[str, Any]:
    frames = [{"filename": "train.py", "line": 10 * index + 7, "name": name} for index, name in enumerate(calls)]
    places = [{"path": "<root>.<workers>", "mesh": "workers", "ranks": ranks, "procs": procs}]
    return {"thread": "MainThread", "note": None, "procs": procs, "threads": procs, "places": places, "frames": frames, "sample": None}


STACKS: dict[str, Any] = {
    "entries": [
        _entry(7000, "0-6999", "all_reduce", "backward", "step", "main"),
        _entry(2999, "7000-9998", "matmul", "forward", "step", "main"),
        _entry(1, "9999", "read", "next_batch", "main"),
    ],
    "unread": [],
    "idle": [],
    "missing": [],
}
# Checks the form of the report.
assert StackReport.from_json(STACKS).entries


def _cause(detector: str, sentence: str, facts: dict[str, str], waiting: list[str], command: str) -> dict[str, Any]:
    return {
        "detector": detector,
        "sentence": sentence,
        "facts": [{"text": text, "source": source} for text, source in facts.items()],
        "waiting": waiting,
        "consequences": [],
        "command": command,
    }


DIAGNOSIS: dict[str, Any] = {
    "causes": [
        _cause(
            "deadlock",
            "trainer rank 5 of 8 (host host1, pid 4127) waits in reader.py:88 in load for loader (get()), which waits for trainer rank 5"
            " (sync()): a cycle of 2 since 41 s",
            {
                "trainer rank 5 waits in reader.py:88 in load, loader waits in loader.py:31 in get": "waits, two looks",
                "messages in queues: loader 311": "queues",
            },
            [f"trainer rank {rank}" for rank in range(8) if rank != 5],
            "monarch stack",
        ),
        # Names are those of programs, with any character.
        _cause("ended", "\u202e<img src=x onerror=alert(1)> raised ValueError", {"a\nb": "failures"}, [], "monarch ps --all"),
    ],
    "procs": 12,
    "healthy_procs": 9,
    "hosts": 4,
    "answered_hosts": 4,
    "coverage": 1.0,
    "busy": [],
    "detectors": ["ended", "crash_loop", "silent_host", "unresponsive", "deadlock", "lock", "limits", "import", "growing_queue"],
    "sources": ["12 procs and 9 actors of 4 hosts", "stacks, waits and queues in two looks 0.4 s apart"],
    "missing": [],
    "left_out": [],
    "text": "",
}


class _Controlled:
    def __init__(self, app: App, cluster: Cluster) -> None:
        self._app, self._cluster = app, cluster

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope.get("path", "")
        if not path.startswith("/control/"):
            await self._app(scope, receive, send)
            return
        what, _, text = path.removeprefix("/control/").partition("/")
        if what == "line":
            self._cluster.write_line(unquote(text))
        else:
            self._cluster.set_silent({"silent": True, "answering": False}[what])
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})


class _Server(uvicorn.Server):
    """Notifies when it accepts connections."""

    def __init__(self, config: uvicorn.Config, ready: threading.Event) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready.set()


@contextmanager
def serving() -> Generator[Served, None, None]:
    """The server in a thread, until the block ends."""
    now = int(time.time() * 1e6)
    cluster = Cluster(now)
    tokens, actions = new_tokens(), _Actions()
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    # A node is answered within a second or not at all, which is too short for 10,000 procs on a busy machine.
    nodes = SqlNodes(Cluster(now, ranks=NODE_RANKS), started_by="ada")
    parts = Parts(
        cluster,
        nodes,
        cast("Actions", actions),
        cast("Stacks", _Stacks()),
        files=files().get,
        diagnosis=lambda _seconds: DIAGNOSIS,
        host="host0",
    )
    ready, ended = threading.Event(), threading.Event()
    running: dict[str, Any] = {}

    async def run() -> None:
        app = App(parts, tokens, Names())
        config = uvicorn.Config(_Controlled(app, cluster), log_level="error", access_log=False, lifespan="off", timeout_graceful_shutdown=1)
        server = _Server(config, ready)
        running.update(app=app, server=server, loop=asyncio.get_running_loop())
        await server.serve(sockets=[listener])

    def body() -> None:
        try:
            asyncio.run(run())
        finally:
            ready.set()
            ended.set()

    def stop() -> None:
        running["app"].close()
        running["server"].should_exit = True

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    ready.wait(20)
    try:
        yield Served(f"http://127.0.0.1:{port}", tokens, cluster, actions.done)
    finally:
        if not ended.is_set():
            running["loop"].call_soon_threadsafe(stop)
        ended.wait(10)
        listener.close()
