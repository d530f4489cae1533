"""Benchmarks of a package that provides `monarch.actor`: torchmonarch, or one with its API.

Uses public names only (monarch.actor, monarch.config, monarch.rdma).
"""
import asyncio
import importlib.metadata
import os
import signal
import time

import measuring
from measuring import MIB, now, percentile, sample

HELLO = """
from monarch.actor import Actor, endpoint, this_host
class Hello(Actor):
    @endpoint
    def hello(self, x): return x
actor = this_host().spawn_procs(per_host={'procs': {n}}).spawn('hello', Hello)
values = [v for _, v in actor.hello.call(1).get().items()]
assert values == [1] * {n}
""" + measuring.STAMP


def peer_name():
    for dist in ("torchmonarch", "monarch"):
        try:
            return f"{dist} {importlib.metadata.version(dist)}"
        except importlib.metadata.PackageNotFoundError:
            pass
    for dist in importlib.metadata.packages_distributions().get("monarch", []):
        return f"{dist} {importlib.metadata.version(dist)}"
    return "monarch"


def startup(r):
    measuring.startup(r, "monarch.actor", HELLO)


def api():
    """The names the other benches use, imported late so that `startup` measures alone."""
    import monarch.actor as ma

    class SyncEcho(ma.Actor):
        def __init__(self):
            self.count = 0

        @ma.endpoint
        def echo(self, x):
            return x

        @ma.endpoint
        def sink(self, x):
            self.count += 1

        @ma.endpoint
        def length(self, x):
            return len(x)

        @ma.endpoint
        def received(self):
            return self.count

        @ma.endpoint
        def pid(self):
            return os.getpid()

    class AsyncEcho(ma.Actor):
        @ma.endpoint
        async def echo(self, x):
            return x

        @ma.endpoint
        async def ping_peer(self, other, count):
            """Round trips from this actor to another one, seconds each."""
            return await measuring.asample(lambda: other.echo.call_one(1), count, warmup=50, budget=5)

    return ma, SyncEcho, AsyncEcho


def procs(ma, n):
    return ma.this_host().spawn_procs(per_host={"procs": n})


def spawn(r):
    """Procs, until each has answered a first call; actors, within one proc."""
    ma, Echo, _ = api()
    first = procs(ma, 1).spawn("warm", Echo)
    first.pid.call_one().get()
    for n in measuring.SPAWN_SIZES:
        bare, ready, stop = [], [], []
        for i in range(3):
            t = now()
            pm = procs(ma, n)
            pm.initialized.get()
            bare.append(now() - t)
            pm.spawn(f"spawn_{n}_{i}", Echo).pid.call().get()
            ready.append(now() - t)
            t = now()
            pm.stop().get()
            stop.append(now() - t)
        r.times(f"stop_procs/{n}", stop, "ms")
        r.times(f"spawn_procs_until_initialized/{n}", bare, "ms")
        r.times(f"spawn_procs/{n}", ready, "ms")


def spawn_actors(r):
    ma, Echo, _ = api()
    pm = procs(ma, 1)
    pm.spawn("warm", Echo).pid.call_one().get()
    ids = iter(range(10**6))

    def one():
        pm.spawn(f"a{next(ids)}", Echo).pid.call_one().get()

    s = sample(one, 200, warmup=5, budget=5)
    r.times("spawn_actor_and_call", s, "us")
    t, count = now(), 200
    actors = [pm.spawn(f"a{next(ids)}", Echo) for _ in range(count)]
    for f in [a.pid.call_one() for a in actors]:
        f.get()
    r.value("spawn_actors_pipelined", count / (now() - t), "actors/s", count)


def rtt(r):
    ma, SyncEcho, AsyncEcho = api()
    pm = procs(ma, 1)
    sync, asyn = pm.spawn("sync", SyncEcho), pm.spawn("async", AsyncEcho)
    r.times("rtt/sync_endpoint", sample(lambda: sync.echo.call_one(1).get(), 5000, 200, 5))
    r.times("rtt/async_endpoint", sample(lambda: asyn.echo.call_one(1).get(), 5000, 200, 5))
    measuring.call_cost(r, lambda: sync.echo.call_one(1).get())

    async def awaiting():
        return await measuring.asample(lambda: asyn.echo.call_one(1), 5000, 200, 5)

    r.times("rtt/await_async_endpoint", asyncio.run(awaiting()))
    caller = procs(ma, 1).spawn("caller", AsyncEcho)
    r.times("rtt/actor_to_actor", caller.ping_peer.call_one(asyn, 5000).get())


def throughput(r):
    ma, SyncEcho, AsyncEcho = api()
    pm = procs(ma, 1)
    for kind, Echo in (("sync", SyncEcho), ("async", AsyncEcho)):
        a = pm.spawn(kind, Echo)
        a.echo.call_one(1).get()
        rates, count = [], 2000
        for _ in range(5):
            t = now()
            for f in [a.echo.call_one(1) for _ in range(count)]:
                f.get()
            rates.append(count / (now() - t))
        r.value(f"pipelined/{kind}_endpoint", percentile(rates, 0.5), "msgs/s", count * len(rates))
    a = pm.spawn("casts", SyncEcho)
    a.received.call_one().get()
    rates, submit, count, sent = [], [], 5000, 0
    for _ in range(5):
        t = now()
        for _ in range(count):
            a.sink.broadcast(1)
        submit.append(count / (now() - t))
        sent += count
        assert a.received.call_one().get() == sent
        rates.append(count / (now() - t))
    r.value("broadcast_submit", percentile(submit, 0.5), "msgs/s", sent)
    r.value("broadcast", percentile(rates, 0.5), "msgs/s", sent)


def mesh(r):
    ma, SyncEcho, _ = api()
    for n in measuring.MESH_SIZES:
        pm = procs(ma, n)
        a = pm.spawn("mesh", SyncEcho)
        assert len(list(a.echo.call(1).get().items())) == n
        r.times(f"call_mesh/{n}", sample(lambda: a.echo.call(1).get(), 1000, 20, 5))
        count, t = 200, now()
        for _ in range(count):
            a.sink.broadcast(1)
        a.received.call().get()
        r.value(f"broadcast_mesh/{n}", count * n / (now() - t), "msgs/s", count)
        pm.stop().get()


def payload(r):
    import numpy

    ma, SyncEcho, _ = api()
    a = procs(ma, 1).spawn("payload", SyncEcho)
    a.echo.call_one(1).get()
    for size in measuring.PAYLOADS:
        name = measuring.size_name(size)
        k = measuring.reps(size)
        for kind, x in (("bytes", os.urandom(min(size, MIB)) * max(1, size // MIB)),
                        ("numpy", numpy.ones(size, numpy.uint8))):
            s = sample(lambda: a.length.call_one(x).get(), k, 2)
            r.bandwidth(f"oneway_{kind}/{name}", size, s)
            s = sample(lambda: a.echo.call_one(x).get(), k, 1)
            r.bandwidth(f"echo_{kind}/{name}", 2 * size, s)
            del x


def bulk(r):
    """RDMABuffer between two procs of this host, over TCP if there is no device."""
    ma, _, _ = api()
    from monarch.config import configure
    from monarch.rdma import RDMABuffer, get_rdma_backend

    configure(rdma_allow_tcp_fallback=True)

    class Owner(ma.Actor):
        @ma.endpoint
        async def buffer(self, size):
            self.data = bytearray(b"\x01") * size
            self.handle = RDMABuffer(memoryview(self.data))
            return self.handle

        @ma.endpoint
        async def check(self, value):
            return self.data[0] == value and self.data[-1] == value

        @ma.endpoint
        async def drop(self):
            await self.handle.drop()
            del self.handle, self.data

    class User(ma.Actor):
        @ma.endpoint
        async def move(self, handle, size, count):
            mv = memoryview(bytearray(size))
            reads = await measuring.asample(lambda: handle.read_into(mv), count, 1)
            assert mv[0] == 1 and mv[size - 1] == 1
            mv[:] = b"\x02" * size
            writes = await measuring.asample(lambda: handle.write_from(mv), count, 1)
            return get_rdma_backend(), reads, writes

    owner = procs(ma, 1).spawn("owner", Owner)
    user = procs(ma, 1).spawn("user", User)
    for size in measuring.BULKS:
        h = owner.buffer.call_one(size).get()
        backend, reads, writes = user.move.call_one(h, size, measuring.reps(size, 50, 2 * measuring.GIB)).get()
        assert owner.check.call_one(2).get()
        owner.drop.call_one().get()
        name = measuring.size_name(size)
        r.bandwidth(f"bulk_read/{name}", size, reads)
        r.bandwidth(f"bulk_write/{name}", size, writes)


def failure(r):
    """SIGKILL of a proc: until a waiting call raises, until __supervise__ of the owner runs."""
    ma, _, _ = api()
    unhandled = []
    ma.unhandled_fault_hook = lambda f: unhandled.append(time.monotonic())

    class SyncVictim(ma.Actor):
        @ma.endpoint
        def pid(self):
            return os.getpid()

    class Owner(ma.Actor):
        def __init__(self, pm):
            self.child = pm.spawn("child", SyncVictim)
            self.seen = None

        @ma.endpoint
        async def pid(self):
            return await self.child.pid.call_one()

        @ma.endpoint
        async def when(self):
            return self.seen

        def __supervise__(self, failure):
            self.seen = self.seen or time.monotonic()
            return True

    class AsyncVictim(ma.Actor):
        @ma.endpoint
        async def pid(self):
            return os.getpid()

        @ma.endpoint
        async def wait(self):
            await asyncio.sleep(120)

    raised, after, owned, hook = [], [], [], []
    for i in range(3):
        pm = procs(ma, 1)
        v = pm.spawn(f"victim{i}", AsyncVictim)
        pid = v.pid.call_one().get()
        waiting = v.wait.call_one()
        time.sleep(0.2)
        unhandled.clear()
        t = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        try:
            waiting.get(timeout=60)
            raise SystemExit("a call to a killed proc returned")
        except TimeoutError:
            r.skip("failure/waiting_call_raises", "nothing within 60 s")
            break
        except Exception:
            raised.append(time.monotonic() - t)
        t = time.monotonic()
        try:
            v.pid.call_one().get(timeout=60)
        except Exception:
            after.append(time.monotonic() - t)
        end = time.monotonic() + 20
        while not unhandled and time.monotonic() < end:
            time.sleep(0.001)
        if unhandled:
            hook.append(unhandled[0] - (t - raised[-1]))
    for i in range(3):
        pm = procs(ma, 1)
        o = procs(ma, 1).spawn(f"owner{i}", Owner, pm)
        pid = o.pid.call_one().get()
        t = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        seen = None
        while seen is None and time.monotonic() < t + 30:
            time.sleep(0.005)
            seen = o.when.call_one().get()
        if seen:
            owned.append(seen - t)
    for name, s in (("waiting_call_raises", raised), ("next_call_raises", after),
                    ("unhandled_fault_hook", hook), ("owner_supervise", owned)):
        if s:
            r.times(f"failure/{name}", s, "ms")


def footprint(r):
    """Memory of a proc and of the controller; CPU that idle procs use; growth over 100k messages."""
    ma, Echo, _ = api()
    n = 4
    a = procs(ma, n).spawn("memory", Echo)
    pids = [p for _, p in a.pid.call().get().items()]
    ms = [measuring.memory(p) for p in pids]
    r.value("rss/proc", sum(m[0] for m in ms) / n, "MiB", n)
    r.value("pss/proc", sum(m[1] for m in ms) / n, "MiB", n)
    extra = [p for p in measuring.descendants() if p not in pids]
    r.value("helper_processes", len(extra), "processes")
    r.value("threads/proc", len(os.listdir(f"/proc/{pids[0]}/task")), "threads")
    measuring.idle_cpu(r)
    one = procs(ma, 1).spawn("counter", Echo)
    one.echo.call_one(1).get()
    before, worker = measuring.memory()[0], one.pid.call_one().get()
    worker_before = measuring.memory(worker)[0]
    r.value("rss/controller", before, "MiB")
    for _ in range(50):
        for f in [one.echo.call_one(1) for _ in range(2000)]:
            f.get()
    r.value("rss_growth_100k/controller", measuring.memory()[0] - before, "MiB", 100_000)
    r.value("rss_growth_100k/proc", measuring.memory(worker)[0] - worker_before, "MiB", 100_000)


BENCHES = dict(startup=startup, spawn=spawn, spawn_actors=spawn_actors, rtt=rtt, throughput=throughput,
               mesh=mesh, payload=payload, bulk=bulk, failure=failure, footprint=footprint)

if __name__ == "__main__":
    measuring.run(peer_name(), BENCHES)
