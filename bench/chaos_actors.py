"""The actors of the chaos run: they number and record the messages that they send and handle, own meshes, and die on request.

One history for all processes: every record is one line, appended by one `write`, so lines are whole and in the order in which they were
written, also across processes. Times are those of the machine's monotonic clock.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import os
import signal
import sys
import time
from typing import Any

from monarch.actor import Actor, MeshFailure, Port, SupervisionError, concurrent_endpoint, context, current_rank, endpoint, this_host


class History:
    """Appends to the history of a run; `who` is `root` or an actor such as `m3[1]`."""

    def __init__(self, path: str, who: str) -> None:
        self.path = path
        self.who = who
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.numbers = 0

    def add(self, event: str, **fields: Any) -> None:
        record = {"t": time.monotonic_ns(), "e": event, "who": self.who, **fields}
        # A killed writer leaves half a line, at the border of a page: the next record begins a line of its own all the same.
        os.write(self.fd, b"\n" + json.dumps(record).encode() + b"\n")

    def begin(self, kind: str, mesh: str, ranks: list[int], **fields: Any) -> int:
        """Records the begin of an operation, and gives its number in the count of this sender."""
        self.numbers += 1
        self.add("begin", n=self.numbers, kind=kind, mesh=mesh, ranks=ranks, **fields)
        return self.numbers

    def end(self, n: int, error: BaseException | None = None, answers: list[Any] | None = None) -> None:
        if error is None:
            self.add("end", n=n, ok=True, answers=answers)
        else:
            first = (str(error).splitlines() or [""])[0]
            self.add("end", n=n, ok=False, error=type(error).__name__, text=first)


def show_stacks_to(path: str) -> None:
    """Makes this process append the stacks of its threads to a file of its own at SIGUSR1, in any state."""
    stacks = open(f"{path}.{os.getpid()}.stacks", "a")  # open for as long as the process lives
    faulthandler.register(signal.SIGUSR1, stacks, all_threads=True)


def answers_of(adverb: str, result: Any) -> list[Any]:
    """The result of an adverb, as a list of answers."""
    return list(result.values()) if adverb == "call" else [result]


class Life:
    """The common behaviour of all actors, without the endpoints."""

    def begin(self, me: str, path: str, mode: str) -> None:
        self.me = me
        self.mode = mode
        self.rank = current_rank().rank
        self.history = History(path, f"{me}[{self.rank}]")
        self.children: dict[str, Any] = {}
        show_stacks_to(path)
        self.history.add("init", mesh=me, rank=self.rank, pid=os.getpid())

    def handle(self, sender: str, n: int, what: str = "work") -> list[Any]:
        self.history.add("handle", mesh=self.me, rank=self.rank, sender=sender, n=n, what=what)
        return [self.me, self.rank, n]

    def adopt(self, id: str, cls: str, mode: str, procs: Any, size: int) -> Any:
        """Spawns a mesh that the actor owns: on the given procs, or on procs of its own."""
        if procs is None:
            procs = this_host().spawn_procs({"procs": size}, name=f"p{id}")
            self.children[f"p{id}"] = procs
        mesh = self.children[id] = procs.spawn(id, CLASSES[cls], id, self.history.path, mode)
        return mesh

    def die(self, how: str) -> None:
        if how == "exit":
            os._exit(3)
        if how == "abort":
            context().actor_instance.abort("chaos")
        elif how == "raise":
            raise RuntimeError("chaos")
        elif how == "leave":
            sys.exit(4)

    def fork_child(self, how: str) -> int:
        """Forks. The child continues in the endpoint in the way `how`; its parent returns the child's exit status."""
        child = os.fork()
        if child:
            return os.waitpid(child, 0)[1]
        if how == "raise":
            # The child prints its traceback, and the run judges stderr.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            raise RuntimeError("chaos in a child")
        if how == "exit":
            sys.exit(5)
        return -1

    def supervise(self, failure: MeshFailure) -> bool:
        kind = failure.reason.kind
        for rank in failure.crashed_ranks:
            self.history.add("notice", mesh=failure.name, rank=rank, kind=kind, answer=self.mode)
        if self.mode == "raise":
            raise ValueError("chaos while supervising")
        return self.mode == "handle"

    def clean_up(self, exc: Exception | None) -> None:
        self.history.add("cleanup", mesh=self.me, rank=self.rank, failed=exc is not None)


class Node(Life, Actor):
    """Synchronous; a failure of its meshes is its own."""

    def __init__(self, me: str, path: str, mode: str) -> None:
        self.begin(me, path, mode)

    @endpoint
    def work(self, sender: str, n: int, pause: float = 0.0, data: bytes = b"") -> list[Any]:
        answer = self.handle(sender, n)
        if pause:
            time.sleep(pause)
        return answer

    @endpoint
    def aside(self, sender: str, n: int, pause: float = 0.0, data: bytes = b"") -> list[Any]:
        return self.handle(sender, n)

    @endpoint(explicit_response_port=True)
    def later(self, port: Port[Any], sender: str, n: int, pause: float = 0.0, data: bytes = b"") -> None:
        port.send(self.handle(sender, n))

    @endpoint
    def own(self, sender: str, n: int, id: str, cls: str, mode: str, procs: Any, size: int) -> Any:
        self.handle(sender, n, "own")
        return self.adopt(id, cls, mode, procs, size)

    @endpoint
    def relay(self, sender: str, n: int, id: str, mesh: Any, ranks: list[int], adverb: str, count: int) -> list[Any]:
        answer = self.handle(sender, n, "relay")
        for _ in range(count):
            number = self.history.begin(adverb, id, ranks)
            try:
                called = getattr(mesh.work, adverb)(self.history.who, number)
                self.history.end(number, answers=[] if called is None else answers_of(adverb, called.get()))
            except SupervisionError as e:
                self.history.end(number, e)
        return answer

    @endpoint
    def drop(self, sender: str, n: int, id: str) -> list[Any]:
        answer = self.handle(sender, n, "drop")
        for name in (id, f"p{id}"):
            mesh = self.children.pop(name, None)
            if mesh is None:
                continue
            number = self.history.begin("stop", name, [])
            try:
                mesh.stop("chaos").get()
                self.history.end(number)
            except SupervisionError as e:
                self.history.end(number, e)
        return answer

    @endpoint
    def fork(self, sender: str, n: int, how: str) -> list[Any]:
        answer = self.handle(sender, n, "fork")
        # The return value of a child is no answer.
        return [self.me, self.rank, -n] if self.fork_child(how) < 0 else answer

    @endpoint
    def pour(self, sender: str, n: int, port: Port[int], count: int) -> list[Any]:
        answer = self.handle(sender, n, "pour")
        for i in range(count):
            port.send(i)
        return answer

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def end(self, sender: str, n: int, how: str) -> list[Any]:
        answer = self.handle(sender, n, how)
        self.die(how)
        return answer

    def __cleanup__(self, exc: Exception | None) -> None:
        self.clean_up(exc)


class AsyncNode(Life, Actor):
    """The same behaviour on an event loop."""

    def __init__(self, me: str, path: str, mode: str) -> None:
        self.begin(me, path, mode)

    @endpoint
    async def work(self, sender: str, n: int, pause: float = 0.0, data: bytes = b"") -> list[Any]:
        answer = self.handle(sender, n)
        if pause:
            await asyncio.sleep(pause)
        return answer

    @concurrent_endpoint
    async def aside(self, sender: str, n: int, pause: float = 0.0, data: bytes = b"") -> list[Any]:
        """Runs beside other messages, and may end after later ones."""
        answer = self.handle(sender, n)
        await asyncio.sleep(pause or 0.005)
        return answer

    @endpoint(explicit_response_port=True)
    async def later(self, port: Port[Any], sender: str, n: int, pause: float = 0.0, data: bytes = b"") -> None:
        """Answers after other messages have arrived."""
        answer = self.handle(sender, n)
        asyncio.get_running_loop().call_later(pause or 0.005, port.send, answer)

    @endpoint
    async def own(self, sender: str, n: int, id: str, cls: str, mode: str, procs: Any, size: int) -> Any:
        self.handle(sender, n, "own")
        return self.adopt(id, cls, mode, procs, size)

    @endpoint
    async def relay(self, sender: str, n: int, id: str, mesh: Any, ranks: list[int], adverb: str, count: int) -> list[Any]:
        answer = self.handle(sender, n, "relay")
        for _ in range(count):
            number = self.history.begin(adverb, id, ranks)
            try:
                called = getattr(mesh.work, adverb)(self.history.who, number)
                self.history.end(number, answers=[] if called is None else answers_of(adverb, await called))
            except SupervisionError as e:
                self.history.end(number, e)
        return answer

    @endpoint
    async def drop(self, sender: str, n: int, id: str) -> list[Any]:
        answer = self.handle(sender, n, "drop")
        for name in (id, f"p{id}"):
            mesh = self.children.pop(name, None)
            if mesh is None:
                continue
            number = self.history.begin("stop", name, [])
            try:
                await mesh.stop("chaos")
                self.history.end(number)
            except SupervisionError as e:
                self.history.end(number, e)
        return answer

    @endpoint
    async def fork(self, sender: str, n: int, how: str) -> list[Any]:
        answer = self.handle(sender, n, "fork")
        # The return value of a child is no answer.
        return [self.me, self.rank, -n] if self.fork_child(how) < 0 else answer

    @endpoint
    async def pour(self, sender: str, n: int, port: Port[int], count: int) -> list[Any]:
        answer = self.handle(sender, n, "pour")
        for i in range(count):
            port.send(i)
        return answer

    @endpoint
    async def pid(self) -> int:
        return os.getpid()

    @endpoint
    async def end(self, sender: str, n: int, how: str) -> list[Any]:
        answer = self.handle(sender, n, how)
        self.die(how)
        return answer

    async def __cleanup__(self, exc: Exception | None) -> None:
        self.clean_up(exc)


class Supervisor(Node):
    """Decides about failures of its meshes."""

    def __supervise__(self, failure: MeshFailure) -> bool:
        return self.supervise(failure)


class AsyncSupervisor(AsyncNode):
    async def __supervise__(self, failure: MeshFailure) -> bool:
        return self.supervise(failure)


class Bystander(Actor):
    """Has no history: spawned on processes that may have no thread for it."""

    @endpoint
    def echo(self, x: int) -> int:
        return x


CLASSES: dict[str, Any] = {c.__name__: c for c in (Node, AsyncNode, Supervisor, AsyncSupervisor)}
