"""The script of a chaos run: chooses each operation by its seed alone, carries it out, and records it. `bench/chaos.py` starts it.

Decisions depend on a model of the existing objects, never on observations, so that a seed replays them whatever the timing. Every
few hundred operations the script waits for all operations, stops everything, and measures the client's remaining resources; this
ends one part of the history and begins the next.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import queue
import random
import signal
import sys
import threading
import time
from glob import glob
from pathlib import Path
from typing import Any

from chaos_actors import CLASSES, History, answers_of, show_stacks_to
from chaos_check import ROOT, read
from chaos_check import History as Past
from chaos_faults import EXPECTED, Faults
from chaos_hosts import HostCuts
from chaos_model import Mesh, Model, Procs

import monarch.actor
from monarch._core._native import set_parent_death_signal
from monarch.actor import MeshFailure, SupervisionError, this_host
from monarch.actor.testing import assert_clean, fault

# The most seconds that an operation may take.
PATIENCE = 30.0
# The most operations in progress, the threads that wait for some of them, and the operations of one part of the history.
AT_ONCE, WAITERS, PART = 24, 4, 300
# The most existing meshes, and the most children.
MESHES, CHILDREN = 12, 8
MEGABYTE = bytes(1 << 20)
FLOOD = 12


class Watch:
    """Knows the operations in progress. If one takes too long, it writes down all stacks and ends the process."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.lock = threading.Condition()
        self.under_way: dict[Any, tuple[float, str]] = {}
        threading.Thread(target=self.run, name="watch", daemon=True).start()

    def begin(self, key: Any, what: str) -> None:
        with self.lock:
            self.under_way[key] = (time.monotonic() + PATIENCE, what)

    def end(self, key: Any) -> None:
        with self.lock:
            self.under_way.pop(key, None)
            self.lock.notify_all()

    def wait_for(self, at_most: int) -> None:
        with self.lock:
            self.lock.wait_for(lambda: len(self.under_way) <= at_most)

    def run(self) -> None:
        while True:
            time.sleep(0.5)
            with self.lock:
                late = [what for end, what in self.under_way.values() if end < time.monotonic()]
            if late:
                self.give_up("; ".join(late))

    def give_up(self, what: str) -> None:
        print(json.dumps({"hang": what}), flush=True)
        for pid in (*procs_of_client(), os.getpid()):
            # Processes without an actor of the run are left out: the signal would end them.
            if glob(f"{self.path}.{pid}.stacks"):
                os.kill(pid, signal.SIGUSR1)
        time.sleep(1.0)
        if os.environ.get("CHAOS_HOLD"):  # lets a person attach a debugger
            time.sleep(3600.0)
        os._exit(2)


def procs_of_client() -> list[int]:
    """The processes that the client's zygote has forked."""
    found: list[int] = []
    for child in children(os.getpid()):
        found += children(child)
    return found


def children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            found += [int(child) for child in (task / "children").read_text().split()]
        except OSError:  # the process has ended meanwhile
            continue
    return found


class Chaos:
    def __init__(self, seed: int, folder: Path, most_procs: int, hosts: str = "") -> None:
        self.rng = random.Random(seed)
        self.folder = folder
        self.most_procs = most_procs
        self.parts = 0
        self.operations = 0
        self.kills = 0
        self.ids = 0
        self.waits: queue.Queue[Any] = queue.Queue()
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, name="loop", daemon=True).start()
        for i in range(WAITERS):
            threading.Thread(target=self._wait, name=f"waiter {i}", daemon=True).start()
        self.sending: dict[str, float] = {
            "call": 24, "call_one": 14, "stream": 8, "choose": 8, "broadcast": 16, "relay": 8, "own": 8, "spawn_procs": 4, "spawn": 6,
            "stop": 2.5, "drop": 1.5, "stop_procs": 1, "kill": 3, "freeze": 2, "delay": 2, "end": 4, "settle": 1,
            "flood": 0.5, "purge": 0.1, "fork": 1, "cramp": 0.3, "pour": 2, "abandon": 2,
        }  # fmt: skip
        self.faults = Faults(self)
        monarch.actor.unhandled_fault_hook = self.notice
        self.hosts: HostCuts | None = None
        self.mesh_of_hosts: Any = None
        if hosts:
            self.sending["cut"] = 2.0
            self.hosts = HostCuts(hosts)
            self.mesh_of_hosts = self.hosts.attach()
        self.begin_part()

    # ---- the parts of a history

    def begin_part(self) -> None:
        self.model = Model()
        self.path = str(self.folder / f"part-{self.parts}.jsonl")
        self.history = History(self.path, ROOT)
        show_stacks_to(self.path)
        self.watch = Watch(self.path) if self.parts == 0 else self.watch
        self.watch.path = self.path

    def end_part(self) -> None:
        """Waits for all operations, stops everything in some order, and measures the remaining resources."""
        self.watch.wait_for(0)
        meshes = [m for m in self.model.meshes.values() if m.handle is not None and m.living()]
        for mesh in meshes:
            # These calls are behind earlier messages: their answers prove that those have been handled.
            for rank in mesh.living():
                self.send("call_one", mesh, [rank])
        self.watch.wait_for(0)
        self._await_notices()
        self.history.add("quiet")
        # A broadcast may have ended an actor only just now. Nothing is stopped before its death is noticed, because
        # a stop would make the death an intended one.
        self._await_notices()
        meshes = [m for m in meshes if m.owner is None]
        procs = self.model.roots_procs()
        for mesh in self.rng.sample(meshes, len(meshes) // 2):
            self.stop(mesh)
        for some in self.rng.sample(procs, len(procs)):
            self.stop(some)
        self.watch.wait_for(0)
        self.model = Model()
        left = self._what_is_left()
        self.history.add("sample", **self.sample())
        os.close(self.history.fd)
        line = {"part": self.parts, "path": self.path, "operations": self.operations, "kills": self.kills, "left": left, **self.sample()}
        print(json.dumps(line), flush=True)
        self.parts += 1

    def _await_notices(self) -> None:
        end = time.monotonic() + PATIENCE
        while Past(read(self.path)).missing_notices() and time.monotonic() < end:
            time.sleep(0.05)

    def _what_is_left(self) -> str:
        end = time.monotonic() + PATIENCE
        while True:
            gc.collect()
            try:
                assert_clean()
                return ""
            except AssertionError as e:
                if time.monotonic() > end:
                    return str(e)
                time.sleep(0.02)

    def sample(self) -> dict[str, int]:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        shared = sum(1 for line in Path("/proc/self/maps").read_text().splitlines() if "/memfd:monarch" in line)
        return {
            "fds": len(os.listdir("/proc/self/fd")),
            # Timers of faults that heal by themselves do not count.
            "threads": len(os.listdir("/proc/self/task")) - sum(isinstance(t, threading.Timer) for t in threading.enumerate()),
            "rss_kb": pages * os.sysconf("SC_PAGE_SIZE") // 1024,
            "segments": shared,
        }

    # ---- observing

    def notice(self, failure: MeshFailure) -> None:
        if failure.name.startswith(EXPECTED):
            return
        for rank in failure.crashed_ranks:
            self.history.add("notice", mesh=failure.name, rank=rank, kind=failure.reason.kind, answer="handle")

    def _wait(self) -> None:
        while True:
            self.waits.get()()

    def observe(self, future: Any, n: int, adverb: str, history: History, by_loop: bool) -> None:
        """Records the outcome of a future, on the event loop or on a thread that waits for it."""

        def ended(result: Any, error: BaseException | None) -> None:
            try:
                answers = None if error is not None or adverb in ("stop", "own") else answers_of(adverb, result)
            except BaseException as e:
                error, answers = e, None
            history.end(n, error, answers)
            self.watch.end((history, n))

        async def await_it() -> None:
            try:
                result = await future
            except BaseException as e:
                ended(None, e)
            else:
                ended(result, None)

        def get_it() -> None:
            try:
                result = future.get()
            except BaseException as e:
                ended(None, e)
            else:
                ended(result, None)

        if by_loop:
            asyncio.run_coroutine_threadsafe(await_it(), self.loop)
        else:
            self.waits.put(get_it)

    # ---- operations

    def step(self) -> None:
        self.operations += 1
        kind = self.rng.choices(list(self.sending), list(self.sending.values()))[0]
        self.watch.wait_for(AT_ONCE)
        do = getattr(self, f"do_{kind}", None) or getattr(self.faults, kind)
        do()

    def handle_of(self, mesh: Mesh, ranks: list[int]) -> Any:
        if len(ranks) == len(mesh.base):
            return mesh.handle
        return mesh.handle.slice(procs=slice(ranks[0], ranks[-1] + 1) if len(ranks) > 1 else ranks[0])

    def some_mesh(self, living: bool = False) -> Mesh | None:
        """A mesh of the root or of an actor, equally often."""
        owned = self.rng.random() < 0.5
        all = [m for m in self.model.meshes.values() if not living or m.living()]
        meshes = [m for m in all if (m.owner is not None) == owned] or all
        return self.rng.choice(meshes) if meshes else None

    def some_ranks(self, size: int) -> list[int]:
        first = self.rng.randrange(size)
        return list(range(first, self.rng.randint(first, size - 1) + 1)) if self.rng.random() < 0.7 else list(range(size))

    def send(self, adverb: str, mesh: Mesh, ranks: list[int], method: str = "work", *args: Any, by_loop: bool = True, **fields: Any) -> int:
        """Sends a numbered message to some actors of a mesh; `observe` records the outcome. 0 if there is no handle."""
        if mesh.handle is None or not ranks:
            return 0
        n = self.history.begin(adverb, mesh.id, ranks, **fields)
        key = (self.history, n)
        self.watch.begin(key, f"{adverb} {n} to {mesh.id}{ranks}")
        try:
            sent = getattr(getattr(self.handle_of(mesh, ranks), method), adverb)(ROOT, n, *args)
        except SupervisionError as e:  # of a broadcast
            self.history.end(n, e)
            self.watch.end(key)
            return n
        if adverb == "stream":
            self.observe_stream(list(sent), n, by_loop)
        elif sent is None:
            self.history.end(n)
            self.watch.end(key)
        else:
            self.observe(sent, n, "own" if method == "own" else adverb, self.history, by_loop)
        return n

    def observe_stream(self, futures: list[Any], n: int, by_loop: bool) -> None:
        history = self.history

        def ended(results: list[Any]) -> None:
            errors = [e for e in results if isinstance(e, BaseException)]
            answers = [a for a in results if not isinstance(a, BaseException)]
            names = [type(e).__name__ for e in errors]
            history.add("end", n=n, ok=True, answers=answers, failed=len(errors), errors=names, text=str(errors[0])[:200] if errors else "")
            self.watch.end((history, n))

        async def await_them() -> None:
            ended(await asyncio.gather(*futures, return_exceptions=True))

        def get_them() -> None:
            results: list[Any] = []
            for future in futures:
                try:
                    results.append(future.get())
                except BaseException as e:
                    results.append(e)
            ended(results)

        if by_loop:
            asyncio.run_coroutine_threadsafe(await_them(), self.loop)
        else:
            self.waits.put(get_them)

    def send_some(self, adverb: str) -> None:
        rng = self.rng
        mesh = self.some_mesh(living=rng.random() < 0.95)
        pause = rng.choice((0.0, 0.0, 0.0, 0.0, 0.002, 0.03))
        data = MEGABYTE[: rng.choice((0, 0, 0, 100, 5_000, 70_000, 1 << 20))]
        by_loop = rng.random() < 0.7
        method = rng.choice(("work", "work", "work", "aside", "later")) if adverb != "broadcast" else "work"
        if mesh is not None:
            ranks = self.some_ranks(len(mesh.base))
            if adverb == "call_one":
                ranks = ranks[:1]
            self.send(adverb, mesh, ranks, method, pause, data, by_loop=by_loop)

    def do_call(self) -> None:
        self.send_some("call")

    def do_call_one(self) -> None:
        self.send_some("call_one")

    def do_stream(self) -> None:
        self.send_some("stream")

    def do_choose(self) -> None:
        self.send_some("choose")

    def do_broadcast(self) -> None:
        self.send_some("broadcast")

    def do_settle(self) -> None:
        self.watch.wait_for(0)

    def do_relay(self) -> None:
        """An actor calls a mesh that is younger than its own, so that actors never wait for each other in a circle."""
        rng = self.rng
        mesh = self.some_mesh(living=True)
        adverb, count, chance = rng.choice(("call", "choose", "broadcast")), rng.randint(1, 4), rng.random()
        if mesh is None:
            return
        younger = [m for m in self.model.meshes.values() if int(m.id[1:]) > int(mesh.id[1:])]
        if younger:
            target = younger[int(chance * len(younger))]
            ranks = self.some_ranks(len(target.base))
            sender = rng.choice(mesh.living())
            if target.handle is not None:
                part = self.handle_of(target, ranks)
                self.send("call_one", mesh, [sender], "relay", target.id, part, ranks, adverb, count)

    def do_spawn_procs(self) -> None:
        size = self.rng.randint(1, 4)
        if len(self.model.living_procs()) + size <= self.most_procs:
            self.ids += 1
            id = f"p{self.ids}"
            self.history.add("spawn_procs", mesh=id, owner=ROOT, size=size)
            where = None if self.hosts is None else self.rng.choice((None, *range(self.hosts.count)))
            host = this_host() if where is None else self.mesh_of_hosts.slice(hosts=where)
            self.model.procs[id] = Procs(id, size, None, host.spawn_procs({"procs": size}, name=id), host=where)
        self.do_spawn()

    def _new_mesh(self, procs: Procs, base: list[int], owner: tuple[str, int] | None) -> tuple[Mesh, str]:
        self.ids += 1
        id = f"m{self.ids}"
        cls = self.rng.choice(list(CLASSES))
        mode = self.rng.choice(("handle", "handle", "ignore", "raise")) if "Supervisor" in cls else "none"
        mesh = self.model.meshes[id] = Mesh(id, procs, base, owner, mode, None)
        by = ROOT if owner is None else f"{owner[0]}[{owner[1]}]"
        self.history.add("spawn", mesh=id, owner=by, procs=procs.id, base=base, mode=mode)
        return mesh, cls

    def do_spawn(self) -> None:
        procs = [p for p in self.model.roots_procs() if len(p.dead) < p.size]
        if not procs or self.model.living_meshes(owned=False) >= MESHES:
            return
        some = self.rng.choice(procs)
        base = self.some_ranks(some.size)
        if some.dead & set(base):
            return
        mesh, cls = self._new_mesh(some, base, None)
        handle = some.handle.slice(procs=slice(base[0], base[-1] + 1))
        mesh.handle = handle.spawn(mesh.id, CLASSES[cls], mesh.id, self.path, mesh.mode)

    def do_own(self) -> None:
        """An actor spawns a mesh: on processes of the root, or on some of its own."""
        rng = self.rng
        owner = self.some_mesh(living=True)
        if owner is None or self.model.living_meshes(owned=True) >= CHILDREN:
            return
        rank = rng.choice(owner.living())
        procs = [p for p in self.model.roots_procs() if not p.dead]
        if procs and rng.random() < 0.6:
            some = rng.choice(procs)
            mesh, cls = self._new_mesh(some, list(range(some.size)), (owner.id, rank))
            handle = some.handle
        else:
            size = rng.randint(1, 2)
            if len(self.model.living_procs()) + size > self.most_procs:
                return
            id = f"pm{self.ids + 1}"
            some = self.model.procs[id] = Procs(id, size, (owner.id, rank), None, host=owner.procs.host)
            self.history.add("spawn_procs", mesh=id, owner=f"{owner.id}[{rank}]", size=size)
            mesh, cls = self._new_mesh(some, list(range(size)), (owner.id, rank))
            handle = None
        if owner.handle is None:
            return
        n = self.history.begin("own", owner.id, [rank])
        self.watch.begin((self.history, n), f"own {n} to {owner.id}[{rank}]")
        try:
            future = self.handle_of(owner, [rank]).own.call_one(ROOT, n, mesh.id, cls, mesh.mode, handle, some.size)
            mesh.handle = future.get()
        except SupervisionError as e:
            self.history.end(n, e)
        else:
            self.history.end(n)
        self.watch.end((self.history, n))

    def stop(self, what: Any) -> None:
        n = self.history.begin("stop", what.id, [])
        self.watch.begin((self.history, n), f"stop {n} of {what.id}")
        self.observe(what.handle.stop("chaos"), n, "stop", self.history, n % 2 == 0)

    def do_stop(self) -> None:
        meshes = [m for m in self.model.meshes.values() if m.owner is None and not m.stopped]
        if meshes:
            mesh = self.rng.choice(meshes)
            self.model.stop(mesh)
            self.stop(mesh)

    def do_stop_procs(self) -> None:
        procs = self.model.roots_procs()
        if procs:
            some = self.rng.choice(procs)
            self.model.stop_procs(some)
            self.stop(some)

    def do_drop(self) -> None:
        """An actor stops a mesh of its own."""
        meshes = [m for m in self.model.meshes.values() if m.owner is not None and m.living()]
        if meshes:
            mesh = self.rng.choice(meshes)
            assert mesh.owner is not None
            owner = self.model.meshes[mesh.owner[0]]
            self.model.stop(mesh)
            if mesh.procs.owner == mesh.owner:
                self.model.stop_procs(mesh.procs)
            self.send("call_one", owner, [mesh.owner[1]], "drop", mesh.id)

    def do_kill(self) -> None:
        mesh = self.some_mesh(living=True)
        if mesh is None:
            return
        ranks = self.some_ranks(len(mesh.base)) if self.rng.random() < 0.3 else [self.rng.choice(mesh.living())]
        for rank in ranks:
            self.model.kill_proc(mesh.procs, mesh.base[rank])
        if mesh.handle is not None:
            self.kills += len(ranks)
            self.history.add("kill", procs=[[mesh.procs.id, mesh.base[r]] for r in ranks])
            fault(self.handle_of(mesh, ranks), "kill")

    def do_flood(self) -> None:
        """Sends more than a mailbox takes before its sender has to wait."""
        mesh = self.some_mesh(living=True)
        pause = self.rng.choice((0.0, 0.002))
        if mesh is not None:
            ranks = self.some_ranks(len(mesh.base))
            for _ in range(FLOOD):
                self.send("broadcast", mesh, ranks, "work", pause, MEGABYTE)

    def do_purge(self) -> None:
        """Kills the zygote, and with it all processes forked from it."""
        living = [(procs, rank) for procs, rank in self.model.living_procs() if procs.host is None]
        for procs, rank in living:
            self.model.kill_proc(procs, rank)
        zygotes = children(os.getpid())
        if living and zygotes:
            self.kills += len(living)
            self.history.add("kill", procs=[[procs.id, rank] for procs, rank in living])
            os.kill(zygotes[0], signal.SIGKILL)
            # Later spawns die too until the death is known, and the model does not know that.
            while zygotes[0] in children(os.getpid()):
                time.sleep(0.001)

    def do_freeze(self) -> None:
        mesh = self.some_mesh(living=True)
        length = self.rng.choice((20, 100, 400, 800))
        if mesh is not None:
            ranks = self.some_ranks(len(mesh.base))
            if mesh.handle is not None:
                self.history.add("freeze", procs=[[mesh.procs.id, mesh.base[r]] for r in ranks], ms=length)
                fault(self.handle_of(mesh, ranks), "freeze", duration=f"{length}ms")

    def do_delay(self) -> None:
        mesh = self.some_mesh(living=True)
        by, length = self.rng.choice((1, 5, 20)), self.rng.choice((20, 100, 400))
        if mesh is not None:
            ranks = self.some_ranks(len(mesh.base))
            if mesh.handle is not None:
                self.history.add("delay", procs=[[mesh.procs.id, mesh.base[r]] for r in ranks], by=by, ms=length)
                fault(self.handle_of(mesh, ranks), "delay", by=f"{by}ms", duration=f"{length}ms")

    def do_end(self) -> None:
        """Requests the end of an actor, in one of several ways."""
        rng = self.rng
        mesh = self.some_mesh(living=True)
        how, adverb = rng.choice(("abort", "leave", "raise", "exit")), rng.choice(("call_one", "broadcast"))
        if mesh is None:
            return
        rank = rng.choice(mesh.living())
        fatal = how != "raise" or adverb == "broadcast"
        if how == "exit":
            self.model.kill_proc(mesh.procs, mesh.base[rank])
        elif fatal:
            self.model.kill(mesh, rank)
        if mesh.handle is None:
            return
        if fatal:
            self.history.add("doom", mesh=mesh.id, rank=rank, how=how, n=self.history.numbers + 1)
        self.send(adverb, mesh, [rank], "end", how, expected="" if fatal else "ActorError")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--operations", type=int, default=sys.maxsize)
    parser.add_argument("--procs", type=int, default=16)
    parser.add_argument("--hosts", default="")
    parser.add_argument("--without", default="")
    options = parser.parse_args()
    # The script is of no use without the process that judges it, which may be killed.
    set_parent_death_signal(os.getppid())
    chaos = Chaos(options.seed, options.folder, options.procs, options.hosts)
    for kind in filter(None, options.without.split(",")):
        del chaos.sending[kind]
    end = time.monotonic() + options.seconds
    while time.monotonic() < end and chaos.operations < options.operations:
        if chaos.operations % PART == 0 and chaos.operations:
            chaos.end_part()
            chaos.begin_part()
        chaos.step()
    chaos.end_part()
    # The end comes in the middle of operations.
    chaos.begin_part()
    for _ in range(PART // 4):
        chaos.step()
    print(json.dumps({"ended": True}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
