"""Events as columns for collectors, and observers that end without a notice."""

from __future__ import annotations

import json

import pytest
from fresh import lines, run
from recorded_actors import ACTORS, recorder

RECORDER = recorder(4096)


def test_columns_equal_the_events():
    done = run(
        ACTORS
        + """
worker = this_host().spawn_procs().spawn("worker", Worker)
worker.emit.call_one(50).get()
with events.span("outer"):
    pass
recording = events.recordings()[1]
batch, same = recording.reader().drain(), recording.reader().read()
assert len(batch) == len(same) > 50 and batch.lost == 0
of_type = {one.name: one for one in events.event_types()}
by_name = {}
for event in same:
    by_name.setdefault(event.name, []).append(event)
assert batch.columns.keys() == by_name.keys()
for name, found in by_name.items():
    columns = batch.columns[name]
    assert columns.rows == len(found) and columns.type.name == name
    assert list(columns) == ["number", "time", "thread", "trace", *(f.name for f in of_type[name].fields)]
    assert columns["number"].tolist() == [e.number for e in found] and columns["time"].tolist() == [e.time for e in found]
    assert columns["thread"].tolist() == [e.thread for e in found] and len(columns["trace"]) == 24 * len(found)
    for field in of_type[name].fields:
        values = columns[field.name].tolist()
        if field.unit in ("name", "text"):
            assert columns[field.name].format == "i"
            values = [batch.texts[n] for n in values]
        assert values == [e.fields[field.name] for e in found], (name, field.name)
try:
    batch.texts[len(batch.texts)]
except IndexError as e:
    print(e.args[0].startswith("text "))
try:
    recording.reader().drain(0)
except ValueError as e:
    print(e)
""",
        env=RECORDER,
    )
    assert lines(done.stdout) == ["True", "most=0: expected 1 to 9223372036854775807"]


def test_arrays_view_columns_without_a_copy():
    done = run(
        ACTORS
        + """
import numpy as np
worker = this_host().spawn_procs().spawn("worker", Worker)
worker.emit.call_one(3000).get()
batch = events.recordings()[1].reader().drain()
user = batch.columns["user.event"]
numbers, names = np.asarray(user["number"]), np.asarray(user["name"])
assert numbers.dtype == np.uint64 and names.dtype == np.int32 and len(numbers) == 3000
# All of one block that nothing owns but the batch, and nothing can write to.
assert not numbers.flags.owndata and not numbers.flags.writeable
assert numbers.__array_interface__["data"][0] % 8 == 0
assert user["number"].obj is user["name"].obj
assert {batch.texts[n] for n in np.unique(names)} == {"step"}
times = np.asarray(user["time"]).view("datetime64[ns]")
assert (np.diff(times) >= np.timedelta64(0)).all()
assert np.asarray(batch.texts.offsets).dtype == np.int32 and batch.texts.offsets[-1] == len(batch.texts.data)
# The columns live as long as an array that views them.
del batch, user
assert int(numbers[-1]) - int(numbers[0]) == 2999
""",
        env=RECORDER,
    )
    assert done.stderr == ""


def test_observer_of_columns_creates_no_event_objects():
    done = run(
        ACTORS
        + """
import gc
seen, ready = 0, threading.Event()
def observer(batch):
    global seen
    user = batch.columns.get("user.event")
    seen += 0 if user is None else user.rows
    assert "events" not in vars(batch)
    if seen == 5000:
        ready.set()
worker = this_host().spawn_procs().spawn("worker", Worker)
watching = events.observe(observer, every=0.01)
worker.emit.call_one(5000).get()
ready.wait()
assert watching.stop() and watching.error is None
assert not [o for o in gc.get_objects() if isinstance(o, events.Event)]
"""
    )
    assert done.stderr == ""


def test_recordings_name_their_process_and_its_job():
    done = run(
        ACTORS
        + """
procs = this_host().spawn_procs(per_host={"gpus": 2}, name="workers")
worker = procs.spawn("worker", Worker)
(job,) = {job for _, job in worker.job.call().get().items()}
print(json.dumps([r.name for r in events.recordings()]))
assert {r.job for r in events.recordings()} == {job} == {member().job}
procs.stop().get()
print(json.dumps([r.ended for r in events.recordings()]))
""",
        env=RECORDER,
    )
    running, ended = map(json.loads, lines(done.stdout))
    assert running == ["client", "<root>.<workers{'gpus': 0/2}>", "<root>.<workers{'gpus': 1/2}>"]
    assert ended == [False, True, True]


def test_observer_on_another_host_gets_its_jobs_procs():
    done = run(
        ACTORS
        + """
from worker_processes import Workers

class Watching(Actor):
    @endpoint
    def watch(self):
        self.pids = set()
        self.watching = events.observe(self.take, every=0.01, job=member().job)

    def take(self, batch):
        if "user.event" in batch.columns:
            self.pids.add(batch.pid)

    @endpoint
    def has_seen(self):
        return bool(self.pids)

    @endpoint
    def seen(self):
        self.watching.stop()
        return self.pids, [r.job for r in events.recordings()]

with Workers(1) as workers, workers.attach() as hosts:
    watching = hosts.spawn_procs(name="watching").spawn("watching", Watching)
    worker = hosts.spawn_procs(name="worker").spawn("worker", Worker)
    watching.watch.call_one().get()
    # The observer has returned before the processes have heard of it.
    while not watching.has_seen.call_one().get():
        worker.emit.call_one(3).get()
    pids, jobs = watching.seen.call_one().get()
    assert pids == {worker.pid.call_one().get()}
    # The agent of another host is of no client's job.
    assert jobs[0] != member().job and set(jobs[1:]) == {member().job}, jobs
"""
    )
    assert done.stderr == ""


def test_observer_of_a_job_gets_only_its_events():
    done = run(
        ACTORS
        + """
from monarch.extension import JobId
worker = this_host().spawn_procs().spawn("worker", Worker)
mine, others = [], []
of_job, of_another = events.observe(mine.append, every=0.01, job=member().job), events.observe(others.append, every=0.01, job=JobId(1))
worker.emit.call_one(10).get()
pid = worker.pid.call_one().get()
of_job.stop()
of_another.stop()
assert {pid, os.getpid()} == {batch.pid for batch in mine} and others == []
"""
    )
    assert done.stderr == ""


def test_killed_observer_ends_the_recording():
    done = run(
        ACTORS
        + """
class Watching(Actor):
    @endpoint
    def watch(self):
        self.watching = events.observe(lambda batch: None, every=0.01)
        return os.getpid()

from eventually import eventually
worker = this_host().spawn_procs().spawn("worker", Worker)
watching = this_host().spawn_procs().spawn("watching", Watching)
pid = watching.watch.call_one().get()
from monarch._core._native.events import is_on
from monarch._core.extension import recording
assert is_on()
# The time for another observer in its place.
recording._GRACE_SECONDS = 0.3
os.kill(pid, signal.SIGKILL)
eventually("the recording to end", is_on, lambda on: not on)
"""
    )
    assert done.stderr == ""


@pytest.mark.timeout(60)
def test_killed_observer_ends_recording_on_other_hosts():
    done = run(
        ACTORS
        + """
from eventually import eventually
from worker_processes import Workers

class Watching(Actor):
    @endpoint
    def watch(self):
        self.watching = events.observe(lambda batch: None, every=0.01)

    @endpoint
    def die(self):
        os.kill(os.getpid(), signal.SIGKILL)

    @endpoint
    def records(self):
        from monarch._core._native.events import is_on
        return is_on()

with Workers(1) as workers, workers.attach() as hosts:
    watching = hosts.spawn_procs(name="watching").spawn("watching", Watching)
    other = hosts.spawn_procs(name="other").spawn("other", Watching)
    watching.watch.call_one().get()
    assert other.records.call_one().get()
    try:
        watching.die.call_one().get()
    except Exception:
        pass
    # After the time for another observer in its place.
    eventually("the recording to end", lambda: other.records.call_one().get(), lambda on: not on)
""",
        timeout=50,
    )
    assert done.stderr == ""


def test_flood_of_events_blocks_neither_processes_nor_stop():
    done = run(
        ACTORS
        + """
this_proc()
seen, flooded, over = set(), threading.Event(), threading.Event()
def observer(batch):
    # More events than it takes: one look at this process would never end.
    if batch.pid == os.getpid() and flooded.is_set():
        for i in range(2 * len(batch)):
            events.emit("more", i=i)
    for n in set(batch.columns["user.event"]["name"] if "user.event" in batch.columns else ()) - {-1}:
        seen.add((batch.pid, batch.texts[n]))
    if any(pid != os.getpid() for pid, name in seen if name == "step"):
        over.set()
watching = events.observe(observer, every=0.01)
worker = this_host().spawn_procs().spawn("worker", Worker)
worker.pid.call_one().get()
flooded.set()
events.emit("begin")
worker.emit.call_one(3).get()
over.wait()
assert watching.stop() and watching.error is None
""",
        env={"MONARCH_FLIGHT_RECORDER_EVENTS": "256"},
    )
    assert done.stderr == ""


def test_process_end_without_new_events_is_a_batch():
    done = run(
        ACTORS
        + """
taken, ended, batches = threading.Event(), threading.Event(), []
def observer(batch):
    if batch.pid == pid:
        batches.append((len(batch), batch.ended))
        if "user.event" in batch.columns:
            taken.set()
        if batch.ended:
            ended.set()
worker = this_host().spawn_procs().spawn("worker", Worker)
pid = worker.pid.call_one().get()
watching = events.observe(observer, every=0.01)
worker.emit.call_one(1).get()
taken.wait()
# What the call itself has left is taken by now, or is in the last batch.
os.kill(pid, signal.SIGKILL)
ended.wait()
assert watching.stop() and watching.error is None
assert [is_end for _, is_end in batches].count(True) == 1 and batches[-1][1], batches
"""
    )
    assert done.stderr == ""


def test_observer_gets_last_events_of_many_ended_processes():
    done = run(
        ACTORS
        + """
found, entered, all_ended = [], threading.Event(), threading.Event()
procs = this_host().spawn_procs(per_host={"gpus": 20}, name="workers")
workers = procs.spawn("worker", Worker)
pids = {pid for _, pid in workers.pid.call().get().items()}
def observer(batch):
    # It has the rings of all of them by now.
    entered.set()
    all_ended.wait()
    found.extend(batch.pid for event in batch.events if event.name == "user.event")
recording = events.observe(lambda batch: None, every=1000)
workers.emit.call(1).get()
watching = events.observe(observer, every=0.01)
entered.wait()
workers.emit.call(3).get()
procs.stop().get()
assert len([r for r in events.recordings() if r.ended]) == 16
all_ended.set()
assert watching.stop() and watching.error is None, watching.error
assert {pid: found.count(pid) for pid in pids} == dict.fromkeys(pids, 4), found
"""
    )
    assert done.stderr == ""


def test_short_process_is_known_before_its_end():
    done = run(
        ACTORS
        + """
known, early = set(), []
looking, killed, ended = threading.Event(), threading.Event(), threading.Event()
def observer(batch):
    if batch.pid == os.getpid():
        # A look takes its time.
        looking.set()
        killed.wait()
    for event in batch.events:
        if event.name == "proc.start":
            known.add(batch.proc)
        elif event.name in ("proc.end", "output.line") and event.fields["proc"] not in known:
            early.append(event)
        if event.name == "proc.end":
            ended.set()
class Short(Actor):
    @endpoint
    def end(self):
        print("x", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
recording = events.observe(observer)
events.emit("begin")
looking.wait()
this_host().spawn_procs().spawn("short", Short).end.broadcast()
while not any(found.ended for found in events.recordings()):  # polls: the agent notices it
    continue
killed.set()
ended.wait()
assert recording.stop() and recording.error is None, recording.error
assert early == [], early
"""
    )
    assert done.stderr == ""
