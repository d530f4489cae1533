"""Events of processes: the flight recorder of a killed proc, full rings, forks, observers, and no leftovers."""

from __future__ import annotations

import json

from fresh import lines, run
from recorded_actors import ACTORS, recorder

RECORDER = recorder(256)


def test_failure_of_a_killed_proc_has_its_events():
    done = run(
        ACTORS
        + """
worker = this_host().spawn_procs(name="doomed").spawn("worker", Worker)
assert worker.step.call_one(3).get() == 3
try:
    worker.die.call_one().get()
except Exception as e:
    failure = e.failure
recent = failure.recent_events
print(names(recent)[-2:], recent[-1].fields)
assert len(recent) <= 32 and [e.number for e in recent] == sorted(e.number for e in recent)
begun = of(recent, "message.begun")
print([b["method"] for b in begun if b["method"]][-2:])
import pickle
assert pickle.loads(pickle.dumps(failure)).recent_events[-1].fields == recent[-1].fields
sys.stdout.flush()
os._exit(0)
""",
        env=RECORDER,
    )
    assert lines(done.stdout) == [
        "['message.begun', 'user.event'] {'name': 'about to die', 'fields': '{\"why\": \"a test\"}'}",
        "['step', 'die']",
    ]


def test_events_need_a_recorder():
    done = run(
        ACTORS
        + """
worker = this_host().spawn_procs().spawn("worker", Worker)
try:
    worker.die.call_one().get()
except Exception as e:
    print(e.failure.recent_events, events.recordings())
sys.stdout.flush()
os._exit(0)
"""
    )
    assert lines(done.stdout) == ["() []"]


def test_call_events_of_both_sides_have_measurements():
    done = run(
        ACTORS
        + """
procs = this_host().spawn_procs(name="workers")
worker = procs.spawn("worker", Worker)
assert worker.step.call_one(b"x" * 1000).get()
worker.pid.call_one().get()
client, proc = (r.reader().read() for r in events.recordings())
(sent,) = [f for f in of(client, "message.sent") if f["method"] == "step"]
(received,) = [f for f in of(proc, "message.received") if f["method"] == "step"]
(handled,) = [f for f in of(proc, "message.handled") if f["method"] == "step"]
assert sent["mesh"] == received["mesh"] == handled["mesh"] and sent["call"] == received["call"] == handled["call"]
assert received["proc"] == handled["proc"] == member().proc
assert 1000 < sent["bytes"] == received["bytes"] < 1200 and received["depth"] in (1, 2)
assert 0 < handled["duration"] < 10**10 and handled["failed"] == 0
assert of(proc, "proc.start")[0]["mesh"].startswith("workers") and len(of(proc, "actor.start")) == 1
times = [e.time for e in proc if e.fields.get("method") == "step"]
assert times == sorted(times) and abs(times[0] / 1e9 - time.time()) < 60
assert "link.up" in names(client) and "log.line" in names(client)
procs.stop().get()
(ended,) = [r for r in events.recordings() if r.ended]
found = ended.reader().read()
assert [f["kind"] for f in of(found, "actor.end")] == ["stopped"], of(found, "actor.end")
""",
        env={**RECORDER, "MONARCH_FLIGHT_RECORDER_EVENTS": "4096"},
    )
    assert done.stderr == ""


def test_events_name_the_part_of_a_mesh():
    done = run(
        ACTORS
        + """
procs = this_host().spawn_procs(per_host={"rows": 2, "a b": 3})
part = procs.slice(rows=1)
worker, other = procs.spawn("worker", Worker), part.spawn("other", Worker)
row = worker.slice(rows=1)
for mesh in (worker, worker.slice(**{"a b": 1}), row.slice(**{"a b": slice(0, 3, 2)}), row.slice(**{"a b": 2}), other):
    mesh.pid.call().get()
found = events.recordings()[0].reader().read()
sent = [(f["offset"], f["dims"]) for f in of(found, "message.sent") if f["method"] == "pid"]
assert sent == [(0, "")] * 6 + [(2, "rows=2:3")] * 2 + [(4, '"a b"=2:2')] * 2 + [(6, "")] + [(0, "")] * 3, sent
made = [(f["class"].rpartition(".")[2], f["offset"], f["dims"]) for f in of(found, "mesh.made")]
assert made == [("", 1, ""), ("Worker", 1, 'rows=2:3 "a b"=3:1'), ("Worker", 4, '"a b"=3:1')], made
""",
        env=RECORDER,
    )
    assert done.stderr == ""


def test_full_ring_keeps_last_events_and_counts_others():
    done = run(
        ACTORS
        + "from eventually import eventually"
        + """
worker = this_host().spawn_procs().spawn("worker", Worker)
worker.emit.call_one(1000).get()
# Its answer comes before the event of its end, which is the last one.
eventually("the end of the call", lambda: names(events.recordings()[1].reader().last(1)), lambda last: last == ["message.handled"])
reader = events.recordings()[1].reader()
found = reader.read()
assert len(found) == reader.capacity == 256
import json
steps = [json.loads(f["fields"])["i"] for f in of(found, "user.event")]
assert steps == list(range(1000 - len(steps), 1000)) and len(steps) > 200, steps
assert reader.lost == found[0].number > 700
assert reader.read() == []
""",
        env=RECORDER,
    )
    assert done.stderr == ""


def test_forked_child_writes_nothing_into_its_parents_ring():
    done = run(
        ACTORS
        + """
worker = this_host().spawn_procs().spawn("worker", Worker)
assert worker.fork.call_one().get() == 7
print([f["name"] for f in of(events.recordings()[1].reader().read(), "user.event")])
""",
        env=RECORDER,
    )
    assert lines(done.stdout) == ["['in the parent']"]


def test_attached_observer_gets_events_of_all_processes():
    done = run(
        ACTORS
        + """
workers = this_host().spawn_procs(per_host={"gpus": 2}).spawn("worker", Worker)
pids = {pid for _, pid in workers.pid.call().get().items()}
assert events.recordings() == []
got, ready = [], threading.Event()
def observer(batch):
    got.append(batch)
    seen = {b.pid for b in got if any(e.name == "message.handled" for e in b.events)}
    if pids <= seen:
        ready.set()
watching = events.observe(observer, every=0.01)
late = this_host().spawn_procs().spawn("late", Worker)
pids.add(late.pid.call_one().get())
while not ready.wait(0.01):
    late.pid.call_one().get()
    workers.step.call(1).get()
watching.stop()
assert watching.error is None
for pid in pids:
    numbers = [e.number for b in got if b.pid == pid for e in b.events]
    assert numbers == sorted(set(numbers)) and {b.lost for b in got if b.pid == pid} == {0}
# Nobody wants them any more: the processes stop to record, and what they have is still there to read.
workers.pid.call().get()
def written():
    return [r.reader().__core__.written for r in events.recordings()]
before = written()
workers.step.call(1).get()
after = written()
assert len(after) == 4 and after == before, (before, after)
"""
    )
    assert done.stderr == ""


def test_observer_asks_the_agent_after_a_process_change():
    done = run(
        ACTORS
        + """
from monarch._core.extension import recording
# Without that the agent is asked now and then all the same.
recording._ASK_SECONDS = 1000.0
asked, looks, real = [], [], recording._ask
recording._ask = lambda *change: asked.append(change) or real(*change)
workers = this_host().spawn_procs(per_host={"gpus": 2}).spawn("worker", Worker)
pids = {pid for _, pid in workers.pid.call().get().items()}
got = set()
watching = events.observe(lambda batch: got.add((batch.pid, batch.ended)), every=0.01)
drain = watching._drain
watching._drain = lambda whole: looks.append(whole) or drain(whole)
def until(holds):
    while not holds():
        workers.step.call(1).get()
until(lambda: pids <= {pid for pid, _ in got})
# At rest.
before, start = len(asked), len(looks)
until(lambda: len(looks) > start + 20)
assert len(asked) == before
# A process comes, and ends.
late = this_host().spawn_procs()
pid = late.spawn("late", Worker).pid.call_one().get()
until(lambda: (pid, False) in got)
late.stop().get()
until(lambda: (pid, True) in got)
assert before < len(asked) < before + 10, len(asked)
watching.stop()
"""
    )
    assert done.stderr == ""


def test_recording_outlives_a_killed_observer_for_a_while():
    done = run(
        ACTORS
        + """
import signal
import monarch.actor
from monarch._core.extension import recording
monarch.actor.unhandled_fault_hook = lambda failure: None
graces = []
timer = threading.Timer
def later(seconds, end, args):
    graces.append((end, args))
    return timer(1000.0, lambda: None)
threading.Timer = later
class Watcher(Actor):
    @endpoint
    def watch(self):
        self.watching = events.observe(lambda batch: None)
        return os.getpid()
worker = this_host().spawn_procs().spawn("worker", Worker)
watcher = this_host().spawn_procs().spawn("watcher", Watcher)
pid, victim = worker.pid.call_one().get(), watcher.watch.call_one().get()
def written():
    worker.pid.call_one().get()
    return sum(r.reader().__core__.written for r in events.recordings() if r.pid == pid)
while not written():  # polls: the process gets the request
    pass
os.kill(victim, signal.SIGKILL)
while not graces:  # polls: the agent notices the end
    worker.pid.call_one().get()
before = written()
assert written() > before
# The time is over.
for end, args in graces:
    end(*args)
while (before := written()) != written():  # polls: the process gets the request
    pass
"""
    )
    assert done.stderr == ""


def test_broken_observer_is_named_and_left_out():
    done = run(
        ACTORS
        + """
import logging
worker = this_host().spawn_procs().spawn("worker", Worker)
def breaks(batch):
    raise ValueError("cannot take it")
good = []
watching, other = events.observe(breaks, every=0.01), events.observe(good.append, every=0.01)
while watching.error is None:
    worker.step.call_one(1).get()
print(type(watching.error).__name__)
before = len(good)
while len(good) < before + 2:
    worker.step.call_one(1).get()
other.stop()
assert other.error is None
try:
    events.observe("no such thing")
except LookupError as e:
    print(e)
"""
    )
    assert lines(done.stdout) == ["ValueError", "no wheel has an observer 'no such thing'; there is none"]
    assert "the observer breaks failed" in done.stderr and "cannot take it" in done.stderr


def test_proc_reads_events_of_its_dead_neighbour():
    done = run(
        ACTORS
        + """
class Reader(Actor):
    @endpoint
    def last(self, pid):
        for recording in events.recordings():
            if recording.pid == pid and recording.ended:
                return [(e.name, e.fields["name"]) for e in recording.reader().last(1)]

worker = this_host().spawn_procs().spawn("worker", Worker)
reader = this_host().spawn_procs().spawn("reader", Reader)
pid = worker.pid.call_one().get()
try:
    worker.die.call_one().get()
except Exception:
    pass
print(reader.last.call_one(pid).get())
sys.stdout.flush()
os._exit(0)
""",
        env=RECORDER,
    )
    assert lines(done.stdout) == ["[('user.event', 'about to die')]"]


def test_nothing_is_left_behind_by_an_orderly_end():
    done = run(
        ACTORS
        + """
from monarch.actor import shutdown_context
from monarch.actor.testing import assert_clean
worker = this_host().spawn_procs().spawn("worker", Worker)
worker.step.call_one(1).get()
files = [r.file for r in events.recordings()]
assert all(os.readlink(f).startswith("/memfd:monarch-events") for f in files) and len(files) == 2
shutdown_context().get()
assert_clean()
""",
        env=RECORDER,
    )
    assert done.stderr == ""


def test_spans_and_meters_are_events():
    done = run(
        ACTORS
        + """
from monarch.actor import get_meter, span
this_proc()
with span("outer", epoch=1):
    try:
        with span("inner"):
            raise KeyError
    except KeyError:
        pass
get_meter("train").create_histogram("loss").record(0.25, {"rank": 0})
found = events.recordings()[0].reader().read()
(outer, inner), (inner_exit, outer_exit) = of(found, "span.enter"), of(found, "span.exit")
assert (outer["name"], outer["parent"], outer["fields"]) == ("outer", 0, '{"epoch": 1}')
assert (inner["name"], inner["parent"]) == ("inner", outer["span"])
assert (inner_exit["failed"], outer_exit["failed"]) == (1, 0) and 0 < inner_exit["duration"] <= outer_exit["duration"]
(metric,) = of(found, "metric.update")
assert metric == {"meter": "train", "name": "loss", "kind": "histogram", "amount": 0.25, "attributes": '{"rank": 0}'}
""",
        env=RECORDER,
    )
    assert done.stderr == ""


def test_failure_on_another_host_has_its_events():
    done = run(
        ACTORS
        + """
from worker_processes import Workers
with Workers(1) as workers, workers.attach() as hosts:
    worker = hosts.spawn_procs(name="far").spawn("worker", Worker)
    try:
        worker.die.call_one().get()
    except Exception as e:
        print(names(e.failure.recent_events)[-2:])
    # The rings of another host's processes are read on that host.
    assert {r.pid for r in events.recordings()} == {os.getpid()}
    sys.stdout.flush()
    failures.clear()
""",
        env=RECORDER,
        check=False,
    )
    assert lines(done.stdout) == ["['message.begun', 'user.event']"], done.stderr


def test_killed_processes_leave_no_files(tmp_path):
    done = run(
        ACTORS
        + """
worker = this_host().spawn_procs().spawn("worker", Worker)
worker.pid.call_one().get()
print(*(os.readlink(r.file) for r in events.recordings()), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
""",
        env={**RECORDER, "TMPDIR": str(tmp_path), "MONARCH_LOG_DIR": str(tmp_path)},
        check=False,
    )
    # The files have no name: they end with the last process that has them.
    assert (done.returncode, done.stdout.strip()) == (-9, " ".join(["/memfd:monarch-events (deleted)"] * 2))
    assert list(tmp_path.iterdir()) == []


def test_hanging_observer_is_left_after_the_stop_timeout():
    done = run(
        ACTORS
        + """
entered, leave = threading.Event(), threading.Event()
def slow(batch):
    entered.set()
    leave.wait()
observation = events.observe(slow, every=0.01)
worker = this_host().spawn_procs().spawn("worker", Worker)
worker.step.call_one(3).get()
entered.wait()
print(observation.stop(timeout=0.01))
leave.set()
print(observation.stop(timeout=None))
"""
    )
    assert lines(done.stdout) == ["False", "True"] and done.stderr == ""


def test_fields_that_are_no_json_are_text():
    done = run(
        ACTORS
        + """
class Mute:
    def __str__(self):
        raise RuntimeError("no text")
    __repr__ = __str__
cycle = []
cycle.append(cycle)
this_host()
events.emit("text", where=os, number=1)
events.emit("cycle", found=cycle, number=2)
events.emit("keys", found={(1, 2): 3})
events.emit("mute", found=Mute(), number=4)
events.emit("numbers", worst=float("nan"), best=[1.5, float("-inf")], number=5)
events.emit("long", first="a" * 5000, second={"x": "b" * 9000}, third=7, **{f"n{n}": "\u00e4" * 300 for n in range(50)})
with events.span("odd", found=Mute()):
    pass
(recording,) = events.recordings()
for event in recording.reader().read():
    if event.name in ("user.event", "span.enter"):
        print(event.fields["name"], event.fields["fields"])
""",
        env={**RECORDER, "MONARCH_FLIGHT_RECORDER_EVENTS": "4096"},
    )
    found = dict(line.split(" ", 1) for line in lines(done.stdout))
    assert '"number": 1' in found["text"] and "<module" in found["text"]
    assert found["cycle"] == '{"found": "[[...]]", "number": "2"}' and found["keys"] == '{"found": "{(1, 2): 3}"}'
    assert json.loads(found["numbers"], parse_constant=int) == {"worst": "nan", "best": [1.5, "-inf"], "number": 5}
    long = json.loads(found["long"])
    assert long["first"].startswith("aaa") and "bbb" in long["second"] and long["third"] == 7 and long["..."] is True
    assert found["mute"] == '{"found": "<Mute>", "number": "4"}' and found["odd"] == '{"found": "<Mute>"}'
    assert done.stderr == ""


def test_read_gives_so_many_at_most():
    done = run(
        ACTORS
        + """
this_host()
for n in range(25_000):
    events.emit("n", n=n)
(recording,) = events.recordings()
reader = recording.reader()
print(*(len(reader.read()) for _ in range(2)), len(reader.read(most=7)), reader.lost)
batches = []
observation = events.observe(batches.append, every=0.01)
observation.stop()
print(max(len(batch.events) for batch in batches))
""",
        env={**RECORDER, "MONARCH_FLIGHT_RECORDER_EVENTS": "32768"},
    )
    assert lines(done.stdout) == ["10000 10000 7 0", "10000"]


def test_late_observer_gets_existing_procs_and_actors():
    done = run(
        ACTORS
        + """
procs = this_host().spawn_procs({"gpus": 2}, name="early")
worker = procs.spawn("worker", Worker)
worker.step.call(1).get()
gone = procs.spawn("gone", Worker)
gone.step.call(1).get()
gone.stop().get()
seen = []
observation = events.observe(lambda batch: seen.extend((event.name, event.fields) for event in batch.events))
while sum(name == "actor.start" and "worker" in fields["actor"] for name, fields in seen) < 2:
    observation.look()
worker.step.call(2).get()
observation.look()
# Who has lost some of that gets it again.
before = len(seen)
observation.introduce()
while sum(name == "actor.start" and "worker" in fields["actor"] for name, fields in seen[before:]) < 2:
    observation.look()
observation.stop()
meshes = {fields["mesh"]: fields for name, fields in seen if name == "mesh.made"}
starts = {fields["id"]: fields for name, fields in seen if name == "proc.start" and fields["mesh"] != "client"}
made = {fields["name"]: (fields["class"].rpartition(".")[2], fields["shape"], fields["age"] > 0) for fields in meshes.values()}
print(made["early"], made["worker"], "gone" in made)
print(meshes[next(m for m in meshes if meshes[m]["name"] == "worker")]["parent"] in starts)
print(sorted(fields["rank"] for name, fields in seen[:before] if name == "proc.start" and fields["mesh"].startswith("early-")))
lines = [fields for name, fields in seen if name == "call.done" and fields["targets"] == 2]
print(lines[-1]["failed"], lines[-1]["stream"])
sys.stdout.flush()
os._exit(0)
"""
    )
    assert lines(done.stdout) == [
        "('', '{\"gpus\": 2}', True) ('Worker', '{\"gpus\": 2}', True) False",
        "True",
        "[0, 1]",
        "0 0",
    ]


def test_output_lines_and_log_records_are_events():
    done = run(
        ACTORS
        + """
import logging

class Talker(Actor):
    @endpoint
    def talk(self) -> None:
        print("to stdout")
        print("to stderr", file=sys.stderr)
        logging.getLogger("talker").error("no %s", "way")

seen = []
observation = events.observe(lambda batch: seen.extend((event.name, event.fields) for event in batch.events))
talker = this_host().spawn_procs(name="talkers").spawn("talker", Talker)
talker.talk.call_one().get()
while sum(name == "output.line" for name, _ in seen) < 3:
    observation.look()
observation.stop()
printed = [(fields["stream"], fields["line"]) for name, fields in seen if name == "output.line"]
print("printed", sorted(line for line in printed if line[1].startswith("to ")))
(record,) = [fields for name, fields in seen if name == "log.record" and fields["logger"] == "talker"]
print("record", record["level"], record["line"], record["actor"] > 0)
received = [fields["method"] for name, fields in seen if name == "message.received"]
print("received", received)
sys.stdout.flush()
os._exit(0)
"""
    )
    shown = [line for line in lines(done.stdout) if line.startswith(("printed", "record", "received"))]
    assert shown == [
        "printed [('stderr', 'to stderr'), ('stdout', 'to stdout')]",
        "record 40 no way True",
        # The proc records from the first message on, as it was spawned during an observation.
        "received ['__init__', 'talk']",
    ]


def test_busy_observer_gets_its_events_before_stop_returns():
    run(
        """
import threading
from monarch.extension import events, member
member()
got, busy, free = [], threading.Event(), threading.Event()
def observer(batch):
    for event in batch.events:
        got.append(event.fields.get("name"))
        if got[-1] == "one":
            busy.set()
            free.wait()
observation = events.observe(observer, every=0.01)
while not busy.wait(0.05):
    events.emit("one")
events.emit("two")
threading.Timer(0.3, free.set).start()
assert observation.stop() and "two" in got, got
"""
    )
