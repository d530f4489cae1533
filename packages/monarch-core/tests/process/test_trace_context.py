"""The trace of a call: its start, its route, and the events that carry it."""

from __future__ import annotations

import asyncio
import pickle

import pytest
from fresh import lines, run
from worker_processes import Workers

from monarch.actor import Actor, attach_to_workers, endpoint
from monarch.extension.trace import TraceContext, trace_context, use_trace

SAMPLED = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

ACTORS = """
import asyncio, os, threading
from monarch.actor import Actor, Port, concurrent_endpoint, context, endpoint, this_host, this_proc
from monarch.extension import events
from monarch.actor import Actor, attach_to_workers, endpoint
from monarch.extension.trace import TraceContext, trace_context, use_trace

TRACE = TraceContext(7 << 100, 9)

def told():
    found = trace_context()
    return found and found.traceparent

class Sync(Actor):
    @endpoint
    def here(self):
        return told()

    @endpoint
    def through(self, other):
        return told(), other.here.call_one().get()

    @endpoint
    def elsewhere(self):
        found = []
        thread = threading.Thread(target=lambda: found.append(told()))
        thread.start()
        thread.join()
        return found[0]

    @endpoint(explicit_response_port=True)
    def port(self, port: Port[str]):
        port.send(told())

    @endpoint
    def emits(self):
        events.emit("here")

class Async(Actor):
    @endpoint
    async def here(self):
        await asyncio.sleep(0)
        return told()

    @endpoint
    async def through(self, other):
        await asyncio.sleep(0)
        return told(), await other.here.call_one()

class Concurrent(Actor):
    def __init__(self):
        self.gate = asyncio.Event()

    @concurrent_endpoint
    async def here(self):
        await self.gate.wait()
        return told()

    @endpoint
    async def open(self):
        before = told()
        self.gate.set()
        return before

def same(parent, trace=TRACE):
    return parent is not None and parent.split("-")[1] == f"{trace.trace_id:032x}"
"""


def test_text_form_is_read_and_written():
    context = TraceContext.from_traceparent(SAMPLED)
    assert context is not None and context.traceparent == SAMPLED
    assert context == TraceContext(context.trace_id, context.span_id) == pickle.loads(pickle.dumps(context))
    assert hash(context) == hash(TraceContext(context.trace_id, context.span_id))
    assert context.child().trace_id == context.trace_id and context.child().span_id not in (0, context.span_id)
    assert TraceContext.from_traceparent(SAMPLED[:-1] + "0") is None


MALFORMED = ["", "00-1-2-01", SAMPLED.upper(), SAMPLED + "-more", "\ud800", SAMPLED.replace("00f067aa0ba902b7", "0" * 16)]


@pytest.mark.parametrize("text", MALFORMED)
def test_malformed_text_form_is_refused(text):
    with pytest.raises((ValueError, UnicodeEncodeError)):
        TraceContext.from_traceparent(text)


@pytest.mark.parametrize("numbers", [(0, 1), (1, 0), (1 << 128, 1), (1, 1 << 64), (-1, 1)])
def test_trace_has_numbers_in_their_range(numbers):
    with pytest.raises((ValueError, OverflowError)):
        TraceContext(*numbers)


def test_code_inside_belongs_to_the_trace():
    outer, inner = TraceContext(1, 2), TraceContext(3, 4)
    assert trace_context() is None
    with use_trace(outer):
        with use_trace(inner):
            assert trace_context() == inner
        with pytest.raises(KeyError), use_trace(None):
            assert trace_context() is None
            raise KeyError
        assert trace_context() == outer
    assert trace_context() is None
    with pytest.raises(TypeError, match="expected a TraceContext or None, not str"), use_trace(SAMPLED):  # type: ignore[arg-type]
        pass


def test_calls_carry_the_trace_to_all_actor_kinds():
    done = run(
        ACTORS
        + """
procs = this_host().spawn_procs({"n": 2})
made = procs.spawn("sync", Sync), procs.spawn("async_", Async), this_proc().spawn("near", Sync), this_proc().spawn("near2", Async)
for mesh in made:
    # The first call overtakes `__init__` now and then.
    with use_trace(TRACE):
        answers = mesh.here.call().get().values()
        spans = {a.split("-")[2] for a in answers}
        assert all(map(same, answers)) and len(spans) == mesh.size() and f"{9:016x}" not in spans
    assert set(mesh.here.call().get().values()) == {None}
    with use_trace(TRACE):
        mine, its = mesh.slice(**({"n": 0} if mesh.size() > 1 else {})).through.call_one(made[0].slice(n=1)).get()
        assert same(mine) and same(its) and mine != its
sync = made[0].slice(n=0)
with use_trace(TRACE):
    assert same(sync.port.call_one().get())
    # A thread that the endpoint starts is a context of its own, as Python has it.
    assert sync.elsewhere.call_one().get() is None
assert sync.port.call_one().get() is None
print("ok")
""",
    )
    assert lines(done.stdout) == ["ok"]


def test_concurrent_endpoints_have_each_its_own():
    done = run(
        ACTORS
        + """
mesh = this_host().spawn_procs().spawn("concurrent", Concurrent)
with use_trace(TRACE):
    one = mesh.here.call_one()
with use_trace(TraceContext(5, 6)):
    two = mesh.here.call_one()
three = mesh.here.call_one()
assert mesh.open.call_one().get() is None
assert same(one.get()) and same(two.get(), TraceContext(5, 6)) and three.get() is None
print("ok")
""",
    )
    assert lines(done.stdout) == ["ok"]


LEAVES = """
def suspended(trace):
    with use_trace(trace):
        yield told()
        yield told()

class SyncLeaves(Actor):
    def __init__(self):
        self.first = suspended(TRACE)
        next(self.first)

    @endpoint
    def leave(self):
        self.rows = suspended(TraceContext(0xDEAD, 1))
        next(self.rows)
        return told()

    @endpoint
    def read_on(self):
        return told(), list(self.rows), told()

    @endpoint
    def here(self):
        return told()

    @endpoint(explicit_response_port=True)
    def port(self, port: Port[str]):
        port.send(told())

class AsyncLeaves(Actor):
    def __init__(self):
        SyncLeaves.__init__(self)

    @endpoint
    async def leave(self):
        self.rows = suspended(TraceContext(0xDEAD, 1))
        next(self.rows)
        return told()

    @endpoint
    async def read_on(self):
        return told(), list(self.rows), told()

    @endpoint
    async def here(self):
        return told()

    @concurrent_endpoint
    async def port(self):
        return told()
"""


@pytest.mark.parametrize("kind", ["SyncLeaves", "AsyncLeaves"])
def test_no_message_has_the_trace_of_another(kind):
    """The code of the previous message may have entered a trace without leaving it."""
    done = run(
        ACTORS
        + LEAVES
        + f"""
mesh = this_host().spawn_procs().spawn("leaves", {kind})
# The first messages may overtake `__init__`, which has left a trace too.
assert mesh.here.call_one().get() is None
assert same(mesh.leave.call_one().get(), TraceContext(0xDEAD, 1))
assert mesh.here.call_one().get() is None and mesh.port.call_one().get() is None
assert mesh.read_on.call_one().get() == (None, [None], None)
other = TraceContext(5, 6)
with use_trace(other):
    assert same(mesh.leave.call_one().get(), TraceContext(0xDEAD, 1))
assert mesh.here.call_one().get() is None
# The generator was made in another trace, which does not come back with its end.
with use_trace(TRACE):
    before, rows, after = mesh.read_on.call_one().get()
    assert same(before) and all(map(same, rows)) and same(after)
    assert same(mesh.here.call_one().get()) and same(mesh.port.call_one().get())
with use_trace(other):
    assert same(mesh.leave.call_one().get(), TraceContext(0xDEAD, 1))
assert mesh.read_on.call_one().get() == (None, [None], None)
assert mesh.here.call_one().get() is None
print("ok")
""",
    )
    assert lines(done.stdout) == ["ok"]


def test_suspended_generator_does_not_leak_its_trace():
    def suspended():
        with use_trace(TraceContext(3, 4)):
            yield

    rows = suspended()
    with use_trace(TraceContext(1, 2)):
        next(rows)
        assert trace_context() == TraceContext(3, 4)
    assert trace_context() is None
    with use_trace(None):
        rows.close()
    assert trace_context() is None


def test_generator_that_another_task_ends_changes_nothing_there():
    async def main():
        async def suspended():
            with use_trace(TraceContext(3, 4)):
                yield

        async def begin():
            await anext(rows)

        rows = suspended()
        await asyncio.create_task(begin())
        with use_trace(TraceContext(1, 2)):
            await rows.aclose()
            assert trace_context() == TraceContext(1, 2)

    asyncio.run(main())


def test_events_carry_the_trace():
    """The events at the ends of a call name its span, and know the span above it."""
    done = run(
        ACTORS
        + """
from threading import Event
batches, got = [], Event()
def see(batch):
    batches.append(batch)
    if any(e.name == "message.handled" and e.fields["method"] == "emits" for e in batch.events):
        got.set()
observation = events.observe(see)
mesh = this_host().spawn_procs().spawn("sync", Sync)
mesh.here.call_one().get()
with use_trace(TRACE):
    mesh.emits.call_one().get()
assert got.wait(20)
observation.stop()
found = {}
for batch in batches:
    for e in batch.events:
        if e.fields.get("method") == "here":
            assert e.trace is None, e
        elif e.fields.get("method") == "emits" or e.fields.get("name") == "here":
            assert e.trace.trace_id == TRACE.trace_id
            found[e.name] = e.trace.span_id, e.fields.get("parent")
sent, parent = found["message.sent"]
assert parent == TRACE.span_id and sent != TRACE.span_id
assert found["message.received"][0] == sent
handles, parent = found["message.begun"]
assert parent == sent and handles != sent
assert found["message.handled"][0] == handles == found["user.event"][0]
print("ok")
""",
    )
    assert lines(done.stdout) == ["ok"]


def test_current_span_of_opentelemetry_is_used():
    """This works even if the library is imported after the first call. A span that is not sampled is not sent."""
    done = run(
        ACTORS
        + """
mesh = this_host().spawn_procs().spawn("sync", Sync)
assert mesh.here.call_one().get() is None
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
tracer = TracerProvider().get_tracer("a test")
assert mesh.here.call_one().get() is None
with tracer.start_as_current_span("above") as span:
    context = span.get_span_context()
    found = trace_context()
    assert (found.trace_id, found.span_id) == (context.trace_id, context.span_id)
    assert same(mesh.here.call_one().get(), found)
    quiet, nothing = TracerProvider(sampler=ALWAYS_OFF).get_tracer("a test"), trace.set_span_in_context(trace.INVALID_SPAN)
    with quiet.start_as_current_span("not sampled", context=nothing):
        assert mesh.here.call_one().get() is None
assert mesh.here.call_one().get() is None
print("ok")
""",
    )
    assert lines(done.stdout) == ["ok"]


def test_broken_library_does_not_fail_calls():
    done = run(
        ACTORS
        + """
import sys, types
broken = types.ModuleType("opentelemetry.trace")
sys.modules["opentelemetry.trace"] = broken
mesh = this_host().spawn_procs().spawn("sync", Sync)
assert mesh.here.call_one().get() is None
def get_current_span():
    raise RuntimeError("broken")
broken.get_current_span = get_current_span
with use_trace(TRACE):
    assert same(mesh.here.call_one().get())
def get_current_span():
    raise KeyboardInterrupt
broken.get_current_span = get_current_span
try:
    mesh.here.call_one()
except KeyboardInterrupt:
    print("interrupted")
broken.get_current_span = lambda: None
assert mesh.here.call_one().get() is None
""",
    )
    assert lines(done.stdout) == ["interrupted"]


class Told(Actor):
    @endpoint
    def here(self) -> TraceContext | None:
        return trace_context()


@pytest.mark.parametrize("kind", ["unix", "tls"])
def test_calls_carry_the_trace_to_other_hosts(kind):
    """The trace arrives by single messages, and by casts."""
    with Workers(2, kind) as workers:
        hosts = attach_to_workers(workers=workers.addresses, **workers.trust())
        mesh = hosts.spawn_procs({"n": 2}).spawn("told", Told)
        context = TraceContext(3 << 70, 5)
        assert set(mesh.here.call().get().values()) == {None}
        with use_trace(context):
            one = mesh.slice(hosts=1, n=0).here.call_one().get()
            every = list(mesh.here.call().get().values())
        assert one is not None and one.trace_id == context.trace_id
        assert {found.trace_id for found in every if found is not None} == {context.trace_id} and len(set(every)) == 4
        assert set(mesh.here.call().get().values()) == {None}
        hosts.shutdown().get()
