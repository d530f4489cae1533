"""The client's script: its commands, which a test sends."""

# Commands arrive as lines; one line answers each. Each host has two procs with two actors each.
PRELUDE = """
import asyncio, json, os, queue, random, signal, sys, threading, time, zlib
import monarch.actor
from monarch.actor import (
    Actor, Channel, DeadlineExceeded, SupervisionError, attach_to_workers, current_rank, deadline, endpoint, per_rank
)

FOLDER = os.environ["TEST_FOLDER"]

def large(n):
    # Of a period that no fragment of it has.
    return random.Random(n).randbytes(65521) * 64

# The file of this name ends what an actor on another host sends.
ENOUGH = f"{FOLDER}/enough"
# Between messages that are to be sent before, during and after a fault.
PACE_S = 0.005

def both(count):
    # What an actor has seen of so many large messages and as many small ones.
    return [x for n in range(count) for x in (("large", n), n)]

def send_large(other, is_enough):
    # Large messages and small ones; whether the actor has seen all that was sent.
    sent = 0
    while not is_enough():
        other.take_large.broadcast(sent, large(sent))
        other.take.broadcast(sent)
        sent += 1
        if sent % 4 == 0:
            # No more than that at once.
            other.pid.call_one().get()
    return other.taken.call_one().get() == both(sent)

class Worker(Actor):
    def __init__(self):
        self.seen = []
    @endpoint
    def pid(self):
        return os.getpid()
    @endpoint
    def take(self, x):
        self.seen.append(x)
    @endpoint
    def taken(self):
        return self.seen
    @endpoint
    def take_large(self, n, data):
        self.seen.append(("large", n) if data == large(n) else ("broken", n))
    @endpoint
    def measure(self, data):
        return len(data), zlib.crc32(data)
    @endpoint
    def produce(self, mib):
        return random.Random(mib).randbytes(1 << 20) * mib
    @endpoint
    def reach(self, other):
        return other.pid.call_one().get() > 0
    @endpoint
    def relay(self, other, count):
        for i in range(count):
            other.take.broadcast(i)
        return other.taken.call_one().get()
    @endpoint
    def relay_large(self, other):
        return send_large(other, lambda: os.path.exists(ENOUGH))
    @endpoint
    def ask(self, other):
        try:
            other.wait.call_one().get()
        except SupervisionError as e:
            return told(e)
    def __cleanup__(self, exc):
        with open(f"{FOLDER}/cleanup-{os.uname().nodename}-{os.getpid()}", "w") as f:
            f.write(str(exc))

class Waiter(Actor):
    @endpoint
    async def wait(self):
        await asyncio.Event().wait()

def say(*words):
    print(*words, flush=True)

def told(error):
    reason = error.failure.reason
    return f"{reason.kind} {error.failure.host}: {reason.detail}"

class Job:
    def __init__(self, workers):
        self.faults = queue.Queue()
        monarch.actor.unhandled_fault_hook = self.faults.put
        self.hosts = attach_to_workers(workers=workers, secret=os.environ["TEST_SECRET"])
        procs = self.hosts.spawn_procs({"procs": 2})
        self.workers, self.waiters = procs.spawn("worker", Worker), procs.spawn("waiter", Waiter)
        self.pids = list(self.workers.pid.call().get().values())
        self.calls = {n: self.waiters.slice(hosts=n).wait.call() for n in range(len(workers))}
        self.sent = 0
        self.flow = None

    # ---- commands

    def pids_of(self, n):
        return json.dumps(self.pids[2 * n : 2 * n + 2])

    def lost(self, n):
        # Until the calls to this host fail.
        try:
            self.calls[n].get()
        except SupervisionError as e:
            return told(e)

    def told(self, n):
        # The next n failures that reach the root.
        failures = [self.faults.get() for _ in range(n)]
        return " ".join(sorted(f"{f.host}:{f.name}:{rank}" for f in failures for rank in f.crashed_ranks))

    def untold(self):
        return self.faults.qsize()

    def alive(self, n):
        return self.workers.slice(hosts=n).pid.call().get() is not None

    def cast(self, times):
        # Calls to all, which all answer.
        return all(list(self.workers.pid.call().get().values()) == self.pids for _ in range(times))

    def stream(self):
        # Messages to all, until `streamed`.
        self.over = threading.Event()
        def run():
            while not self.over.wait(PACE_S):
                self.workers.take.broadcast(self.sent)
                self.sent += 1
        self.flow = threading.Thread(target=run)
        self.flow.start()
        return "on"

    def bulk(self):
        # Large messages and small ones to all, until `bulked`.
        self.over = threading.Event()
        def run():
            while not self.over.is_set():
                self.workers.take_large.broadcast(self.sent, large(self.sent))
                self.workers.take.broadcast(self.sent)
                self.sent += 1
                if self.sent % 4 == 0:
                    # No more than that at once.
                    self.workers.pid.call().get()
        self.flow = threading.Thread(target=run)
        self.flow.start()
        return "on"

    def bulked(self):
        self.over.set()
        self.flow.join()
        want = both(self.sent)
        return all(seen == want for seen in self.workers.taken.call().get().values())

    def heavy(self, a, b):
        # Large messages and small ones to one, from here, and from another host to its neighbour; until `weighed`.
        one, other = self.workers.slice(hosts=b, procs=0), self.workers.slice(hosts=b, procs=1)
        self.answer = self.workers.slice(hosts=a, procs=0).relay_large.call_one(other)
        self.over = threading.Event()
        def run():
            self.seen = send_large(one, self.over.is_set)
        self.flow = threading.Thread(target=run)
        self.flow.start()
        return "on"

    def give(self, n, mib):
        # One large argument, until `given`.
        data = random.Random(mib).randbytes(1 << 20) * mib
        self.want = len(data), zlib.crc32(data)
        self.answer = self.workers.slice(hosts=n, procs=0).measure.call_one(data)
        return "on"

    def given(self):
        return self.answer.get() == self.want

    def distribute(self, mib):
        # Another value for each, until `distributed`.
        values = [random.Random(rank).randbytes(1 << 20) * mib or bytes([rank]) for rank in range(len(self.pids))]
        self.want = [(len(data), zlib.crc32(data)) for data in values]
        self.answer = self.workers.measure.call(per_rank(values))
        return "on"

    def distributed(self):
        return self.answer.get().values() == self.want

    def until(self, millis):
        # The ranks without an answer at a deadline, and the line about them.
        with deadline(millis / 1000):
            error = self.workers.pid.call().exception()
        return f"{error.missing}{str(error).splitlines()[1]}" if isinstance(error, DeadlineExceeded) else error

    def fetch(self, n, mib):
        # One large result, until `fetched`.
        self.mib = mib
        self.answer = self.workers.slice(hosts=n, procs=0).produce.call_one(mib)
        return "on"

    def fetched(self):
        return self.answer.get() == random.Random(self.mib).randbytes(1 << 20) * self.mib

    def weighed(self):
        self.over.set()
        open(ENOUGH, "w").close()
        self.flow.join()
        return self.seen and self.answer.get()

    def streamed(self):
        self.over.set()
        self.flow.join()
        return all(seen == list(range(self.sent)) for seen in self.workers.taken.call().get().values())

    def ready(self, a, b):
        # The one can reach the other.
        return self.workers.slice(hosts=a, procs=0).reach.call_one(self.workers.slice(hosts=b, procs=0)).get()

    def relay(self, a, b, count):
        # Messages from the one to the other; `relayed` tells whether all came.
        other = self.workers.slice(hosts=b, procs=0)
        self.answer = self.workers.slice(hosts=a, procs=0).relay.call_one(other, count)
        self.count = count
        return "on"

    def relayed(self):
        return self.answer.get() == list(range(self.count))

    def ask(self, a, b):
        return self.workers.slice(hosts=a, procs=0).ask.call_one(self.waiters.slice(hosts=b, procs=0)).get()

job = Job(sys.argv[1:])
say("up")
for line in sys.stdin:
    command, *numbers = line.split()
    say(getattr(job, command)(*map(int, numbers)))
"""
