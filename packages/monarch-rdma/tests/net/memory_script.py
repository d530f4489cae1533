"""What the script of a client does here on request of a test."""

# Commands arrive as lines; one line answers each. Each host has two procs with an actor each; `share` names a buffer for the following
# commands.
SCRIPT = """
import json, os, random, signal, sys, threading, time, warnings
import monarch.actor
from monarch.actor import Actor, Channel, attach, attach_to_workers, endpoint
from monarch.rdma import RDMAAction, RDMABuffer, RDMABufferSet, RDMAError, RDMATcpFallbackWarning

warnings.simplefilter("ignore", RDMATcpFallbackWarning)
monarch.actor.unhandled_fault_hook = lambda failure: None

def pattern(nbytes, seed):
    # Of a period that no slice of it has.
    return (random.Random(seed).randbytes(min(nbytes, 65521)) * (nbytes // 65521 + 1))[:nbytes]

class Memory(Actor):
    def __init__(self):
        warnings.simplefilter("ignore", RDMATcpFallbackWarning)
    @endpoint
    def pid(self):
        return os.getpid()
    @endpoint
    def share(self, nbytes, seed):
        self.data = bytearray(pattern(nbytes, seed))
        self.buffer = RDMABuffer(memoryview(self.data))
        return self.buffer
    @endpoint
    def holds(self, nbytes, seed):
        return self.data == pattern(nbytes, seed)
    @endpoint
    def read(self, buffer, seed, times):
        return reading(buffer, seed, times)
    @endpoint
    def die(self):
        os.kill(os.getpid(), signal.SIGKILL)
    @endpoint
    def drop(self):
        self.buffer.drop().get()

def reading(buffer, seed, times, seconds=60):
    # The path, or what went wrong.
    want = pattern(buffer.size(), seed)
    for _ in range(times):
        got = bytearray(buffer.size())
        try:
            buffer.read_into(memoryview(got), timeout=seconds).get()
        except RDMAError as e:
            return failed(e)
        if got != want:
            return "other bytes"
    return buffer.path

def failed(error):
    return f"{type(error).__name__} {getattr(error, 'reason', None)} {str(error).splitlines()[0]}"

class Job:
    def __init__(self, workers):
        if gateway := os.environ.get("TEST_GATEWAY"):
            attach(gateway, secret=os.environ["TEST_SECRET"])
        self.hosts = attach_to_workers(workers=workers, secret=os.environ["TEST_SECRET"])
        self.memory = self.hosts.spawn_procs({"procs": 2}).spawn("memory", Memory)
        self.pids = list(self.memory.pid.call().get().values())

    def at(self, host, proc):
        return self.memory.slice(hosts=host, procs=proc)

    # ---- commands

    def pids_of(self, n):
        return json.dumps(self.pids[2 * n : 2 * n + 2])

    def share(self, host, proc, nbytes, seed):
        self.buffer, self.seed = self.at(host, proc).share.call_one(nbytes, seed).get(), seed
        self.owner = self.at(host, proc)
        return self.buffer.size()

    def share_here(self, nbytes, seed):
        self.data = bytearray(pattern(nbytes, seed))
        self.buffer, self.seed = RDMABuffer(memoryview(self.data)), seed
        return self.buffer.size()

    def read(self, times):
        return reading(self.buffer, self.seed, times)

    def read_by(self, host, proc, times):
        return self.at(host, proc).read.call_one(self.buffer, self.seed, times).get()

    def begin(self, times, seconds=60):
        # Reads on a thread of its own, until `outcome`.
        self.result = []
        self.thread = threading.Thread(target=lambda: self.result.append(reading(self.buffer, self.seed, times, seconds)))
        self.thread.start()
        return "begun"

    def begin_writing(self, times, seconds):
        # The same for writes.
        self.result = []
        self.thread = threading.Thread(target=lambda: self.result.append(all(self.write(n, seconds) for n in range(times))))
        self.thread.start()
        return "begun"

    def outcome(self):
        self.thread.join()
        return self.result[0]

    def read_within(self, ms):
        try:
            self.buffer.read_into(memoryview(bytearray(self.buffer.size())), timeout=ms / 1000).get()
        except RDMAError as e:
            return failed(e)

    def write(self, seed, seconds=60):
        self.seed = seed
        self.buffer.write_from(memoryview(pattern(self.buffer.size(), seed)), timeout=seconds).get()
        return self.owner.holds.call_one(self.buffer.size(), seed).get()

    def drop(self):
        self.owner.drop.call_one().get()
        return "dropped"

    def kill(self, host, proc):
        self.at(host, proc).die.broadcast()

    def words(self):
        before = bytearray(8)
        action = RDMAAction().fetch_add(self.buffer, memoryview(before), 1)
        first = []
        for _ in range(3):
            action.submit().get()
            first.append(int.from_bytes(before, "little"))
        return first == list(range(first[0], first[0] + 3))

    def notify(self, seed):
        sending, receiving = Channel.open()
        data = pattern(self.buffer.size(), seed)
        self.seed = seed
        RDMAAction().write_remote(self.buffer, memoryview(data)).submit(notify=(sending, "written")).get()
        return receiving.recv().get() == "written" and self.owner.holds.call_one(self.buffer.size(), seed).get()

    def map(self):
        try:
            self.buffer.map()
        except RDMAError as e:
            return failed(e)

job = Job(sys.argv[1:])
print("up", flush=True)
for line in sys.stdin:
    command, *numbers = line.split()
    print(getattr(job, command)(*map(int, numbers)), flush=True)
"""
