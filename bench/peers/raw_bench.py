"""Lower bounds: communication of two processes of this machine with almost no code in between.

--kind pipe     multiprocessing.Pipe, pickled objects, blocking
       unix     a blocking AF_UNIX stream, fixed 64-byte messages, no pickling
       asyncio  asyncio AF_UNIX streams, length-prefixed pickles, one future a call
       zmq      pyzmq DEALER/ROUTER over ipc, pickled, blocking
       fork     os.fork instead of a new interpreter (spawn only)
       shm      memory: one memcpy; a copy through shared memory; process_vm_readv
"""
import asyncio
import ctypes
import itertools
import mmap
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from multiprocessing import Pipe, connection, shared_memory

import measuring
from measuring import GIB, MIB, now, percentile, sample


# ---- the serving side, run in a child as `raw_bench.py --serve KIND ARG`

def serve_pipe(fd):
    conn, count = connection.Connection(int(fd)), 0
    try:
        while True:
            op, x = conn.recv()
            if op == "sink":
                count += 1
            else:
                conn.send(x if op == "echo" else len(x) if op == "length" else count if op == "received"
                          else os.getpid())
    except EOFError:
        pass


def serve_unix(fd):
    s = socket.socket(fileno=int(fd))
    buf = bytearray(64)
    while s.recv_into(buf, 64, socket.MSG_WAITALL) == 64:
        n = struct.unpack_from("<Q", buf)[0]
        if n:  # n bytes follow: take them, then answer
            big = memoryview(bytearray(n))
            got = 0
            while got < n:
                got += s.recv_into(big[got:])
        s.sendall(buf)


async def read_frame(reader):
    return pickle.loads(await reader.readexactly(struct.unpack("<Q", await reader.readexactly(8))[0]))


def write_frame(writer, obj):
    b = pickle.dumps(obj, 5)
    if len(b) < 1 << 16:
        writer.write(struct.pack("<Q", len(b)) + b)
    else:
        writer.write(struct.pack("<Q", len(b)))
        writer.write(b)


def serve_asyncio(path):
    state = {"count": 0}

    async def client(reader, writer):
        try:
            while True:
                ident, op, x = await read_frame(reader)
                if op == "sink":
                    state["count"] += 1
                    continue
                write_frame(writer, (ident, x if op == "echo" else len(x) if op == "length" else state["count"]))
                await writer.drain()
        except asyncio.IncompleteReadError:
            os._exit(0)

    async def main():
        server = await asyncio.start_unix_server(client, path, limit=8 * MIB)
        async with server:
            await server.serve_forever()

    asyncio.run(main())


def serve_zmq(path):
    import zmq

    s = zmq.Context().socket(zmq.DEALER)
    s.setsockopt(zmq.SNDHWM, 0), s.setsockopt(zmq.RCVHWM, 0)
    s.bind("ipc://" + path)
    count = 0
    while True:
        frame = s.recv(copy=False)
        op, x = pickle.loads(frame.buffer)
        if op == "sink":
            count += 1
        elif op == "stop":
            return
        else:
            s.send(pickle.dumps(x if op == "echo" else len(x) if op == "length" else count, 5), copy=False)


def serve_memory(name, size):
    """A buffer for process_vm_readv: prints its address, then waits for stdin to end."""
    import numpy

    data = numpy.ones(int(size), numpy.uint8)
    print(data.ctypes.data, flush=True)
    sys.stdin.read()


# ---- the calling side

def child(kind, arg, **popen):
    return subprocess.Popen([sys.executable, "-E", os.path.abspath(__file__), "--serve", kind, *map(str, arg)], **popen)


class PipePeer:
    def __init__(self):
        self.conn, theirs = Pipe()
        os.set_inheritable(theirs.fileno(), True)
        self.p = child("pipe", [theirs.fileno()], pass_fds=[theirs.fileno()])
        theirs.close()

    def submit(self, op, x):
        self.conn.send((op, x))

    def result(self):
        return self.conn.recv()

    def call(self, op, x=None):
        self.conn.send((op, x))
        return self.conn.recv()

    def close(self):
        self.conn.close()
        self.p.wait()


class ZmqPeer:
    def __init__(self):
        import zmq

        self.path = path = tempfile.mktemp(prefix="raw-zmq-")
        self.p = child("zmq", [path])
        self.s = zmq.Context.instance().socket(zmq.DEALER)
        self.s.setsockopt(zmq.SNDHWM, 0), self.s.setsockopt(zmq.RCVHWM, 0)
        self.s.connect("ipc://" + path)

    def submit(self, op, x):
        self.s.send(pickle.dumps((op, x), 5), copy=False)

    def result(self):
        return pickle.loads(self.s.recv(copy=False).buffer)

    def call(self, op, x=None):
        self.submit(op, x)
        return self.result()

    def close(self):
        self.submit("stop", None)
        self.p.wait()
        os.unlink(self.path)


def blocking(kind):
    return {"pipe": PipePeer, "zmq": ZmqPeer}[kind]()


class AsyncPeer:
    @classmethod
    async def make(cls):
        self = cls()
        self.path = path = tempfile.mktemp(prefix="raw-asyncio-")
        self.p = child("asyncio", [path])
        while True:
            try:
                self.reader, self.writer = await asyncio.open_unix_connection(path, limit=8 * MIB)
                break
            except OSError:
                await asyncio.sleep(0.005)
        self.waiting, self.ids = {}, itertools.count()
        self.task = asyncio.create_task(self.read())
        return self

    async def read(self):
        try:
            while True:
                ident, x = await read_frame(self.reader)
                self.waiting.pop(ident).set_result(x)
        except asyncio.IncompleteReadError:
            pass

    def call(self, op, x=None):
        i = next(self.ids)
        f = self.waiting[i] = asyncio.get_running_loop().create_future()
        write_frame(self.writer, (i, op, x))
        return f

    def cast(self, op, x=None):
        write_frame(self.writer, (0, op, x))

    async def close(self):
        self.task.cancel()
        self.writer.close()
        await self.writer.wait_closed()
        self.p.wait()
        os.unlink(self.path)


def spawn(r, a):
    if a.kind == "fork":
        def fork():
            ours, theirs = Pipe()
            pid = os.fork()
            if pid == 0:
                ours.close()
                serve_pipe(os.dup(theirs.fileno()))
                os._exit(0)
            theirs.close()
            return ours, pid

        for n in measuring.SPAWN_SIZES:
            ready = []
            for _ in range(3):
                t = now()
                all_ = [fork() for _ in range(n)]
                for c, _ in all_:
                    c.send(("pid", None))
                for c, _ in all_:
                    c.recv()
                ready.append(now() - t)
                for c, pid in reversed(all_):  # a later child holds the earlier ones' ends
                    c.close()
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
            r.times(f"spawn_procs/{n}", ready, "ms")
    elif a.kind in ("pipe", "zmq"):
        for n in measuring.SPAWN_SIZES:
            ready = []
            for _ in range(3):
                t = now()
                ps = [blocking(a.kind) for _ in range(n)]
                for p in ps:
                    p.submit("echo", 1)
                for p in ps:
                    p.result()
                ready.append(now() - t)
                for p in ps:
                    p.close()
            r.times(f"spawn_procs/{n}", ready, "ms")


def rtt(r, a):
    if a.kind in ("pipe", "zmq"):
        p = blocking(a.kind)
        r.times("rtt/sync_endpoint", sample(lambda: p.call("echo", 1), 20000, 500, 5))
        measuring.call_cost(r, lambda: p.call("echo", 1), 20000)
        p.close()
    elif a.kind == "unix":
        s, p = unix_peer()
        buf, got = bytes(64), bytearray(64)

        def one():
            s.sendall(buf)
            s.recv_into(got, 64, socket.MSG_WAITALL)

        r.times("rtt/sync_endpoint", sample(one, 20000, 500, 5))
        measuring.call_cost(r, one, 20000)
        s.close()
        p.wait()
    elif a.kind == "asyncio":
        async def main():
            p = await AsyncPeer.make()
            s = await measuring.asample(lambda: p.call("echo", 1), 20000, 500, 5)
            r.times("rtt/await_async_endpoint", s)
            r.times("rtt/async_endpoint", s)
            with measuring.CallCost(r, 20000):
                for _ in range(20000):
                    await p.call("echo", 1)
            await p.close()

        asyncio.run(main())


def throughput(r, a):
    if a.kind in ("pipe", "zmq"):
        p = blocking(a.kind)
        p.call("echo", 1)
        rates, count, window = [], 2000, 500  # a window: the pipe's own buffer is finite
        for _ in range(5):
            t = now()
            for _ in range(count // window):
                for _ in range(window):
                    p.submit("echo", 1)
                for _ in range(window):
                    p.result()
            rates.append(count / (now() - t))
        r.value("pipelined/sync_endpoint", percentile(rates, 0.5), "msgs/s", count * 5)
        rates, count = [], 20000
        for _ in range(5):
            t = now()
            for _ in range(count):
                p.submit("sink", 1)
            p.call("received", 0)
            rates.append(count / (now() - t))
        r.value("broadcast", percentile(rates, 0.5), "msgs/s", count * 5)
        p.close()
    elif a.kind == "asyncio":
        async def main():
            p = await AsyncPeer.make()
            await p.call("echo", 1)
            rates, count = [], 2000
            for _ in range(5):
                t = now()
                await asyncio.gather(*[p.call("echo", 1) for _ in range(count)])
                rates.append(count / (now() - t))
            r.value("pipelined/async_endpoint", percentile(rates, 0.5), "msgs/s", count * 5)
            rates, count = [], 5000
            for _ in range(5):
                t = now()
                for _ in range(count):
                    p.cast("sink", 1)
                await p.call("received")
                rates.append(count / (now() - t))
            r.value("broadcast", percentile(rates, 0.5), "msgs/s", count * 5)
            await p.close()

        asyncio.run(main())


def mesh(r, a):
    if a.kind not in ("pipe", "asyncio"):
        return
    if a.kind == "pipe":
        for n in measuring.MESH_SIZES:
            ps = [PipePeer() for _ in range(n)]

            def one():
                for p in ps:
                    p.submit("echo", 1)
                return [p.result() for p in ps]

            one()
            r.times(f"call_mesh/{n}", sample(one, 1000, 20, 5))
            for p in ps:
                p.close()
        return

    async def main():
        for n in measuring.MESH_SIZES:
            ps = await asyncio.gather(*[AsyncPeer.make() for _ in range(n)])

            async def one():
                return await asyncio.gather(*[p.call("echo", 1) for p in ps])

            r.times(f"call_mesh/{n}", await measuring.asample(one, 1000, 20, 5))
            for p in ps:
                await p.close()

    asyncio.run(main())


def unix_peer():
    ours, theirs = socket.socketpair()
    for s in (ours, theirs):
        s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MIB)
    os.set_inheritable(theirs.fileno(), True)
    p = child("unix", [theirs.fileno()], pass_fds=[theirs.fileno()])
    theirs.close()
    return ours, p


def payload(r, a):
    if a.kind in ("pipe", "zmq"):
        p = blocking(a.kind)
        p.call("echo", 1)
        for size in measuring.PAYLOADS:
            x, k, name = os.urandom(min(size, MIB)) * max(1, size // MIB), measuring.reps(size), measuring.size_name(size)
            r.bandwidth(f"oneway_bytes/{name}", size, sample(lambda: p.call("length", x), k, 2))
            r.bandwidth(f"echo_bytes/{name}", 2 * size, sample(lambda: p.call("echo", x), k, 1))
        p.close()
    elif a.kind == "unix":
        s, p = unix_peer()
        got = bytearray(64)
        for size in measuring.PAYLOADS:
            x = bytes(size)
            head = struct.pack("<Q", size).ljust(64, b"\0")

            def one():
                s.sendall(head)
                s.sendall(x)
                s.recv_into(got, 64, socket.MSG_WAITALL)

            r.bandwidth(f"oneway_bytes/{measuring.size_name(size)}", size, sample(one, measuring.reps(size), 2))
        s.close()
        p.wait()
    elif a.kind == "asyncio":
        async def main():
            p = await AsyncPeer.make()
            for size in measuring.PAYLOADS:
                x, k, name = bytes(size), measuring.reps(size), measuring.size_name(size)
                r.bandwidth(f"oneway_bytes/{name}", size, await measuring.asample(lambda: p.call("length", x), k, 2))
                r.bandwidth(f"echo_bytes/{name}", 2 * size, await measuring.asample(lambda: p.call("echo", x), k, 1))
            await p.close()

        asyncio.run(main())


class IoVec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]


def first_touch(size, huge):
    """Seconds to write fresh anonymous memory once: the page faults of every newly allocated buffer."""
    m = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if huge:
        m.madvise(mmap.MADV_HUGEPAGE)
    c = ctypes.c_char.from_buffer(m)
    t = now()
    ctypes.memset(ctypes.addressof(c), 1, size)
    t = now() - t
    del c
    m.close()
    return t


def bulk(r, a):
    if a.kind != "shm":
        return
    import numpy

    for size in measuring.BULKS:
        for huge in (False, True):
            name = f"first_touch{'_huge_pages' if huge else ''}/{measuring.size_name(size)}"
            r.bandwidth(name, size, [first_touch(size, huge) for _ in range(3)])
    libc = ctypes.CDLL(None, use_errno=True)
    libc.process_vm_readv.restype = ctypes.c_ssize_t
    for size in measuring.BULKS:
        name, k = measuring.size_name(size), measuring.reps(size, 50, 2 * GIB)
        dst = numpy.zeros(size, numpy.uint8)
        src = numpy.ones(size, numpy.uint8)
        r.bandwidth(f"memcpy/{name}", size, sample(lambda: numpy.copyto(dst, src), k, 1))
        shm = shared_memory.SharedMemory(create=True, size=size)
        shared = numpy.frombuffer(shm.buf, numpy.uint8)

        def through():
            numpy.copyto(shared, src)
            numpy.copyto(dst, shared)

        r.bandwidth(f"bulk_read_through_shm/{name}", size, sample(through, k, 1))
        r.bandwidth(f"bulk_read_from_shm/{name}", size, sample(lambda: numpy.copyto(dst, shared), k, 1))
        del shared
        shm.close()
        shm.unlink()
        p = child("memory", ["-", size], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        there = int(p.stdout.readline())

        def read():
            done = 0
            while done < size:
                n = libc.process_vm_readv(p.pid, ctypes.byref(IoVec(dst.ctypes.data + done, size - done)), 1,
                                          ctypes.byref(IoVec(there + done, size - done)), 1, 0)
                if n <= 0:
                    raise OSError(ctypes.get_errno(), "process_vm_readv")
                done += n

        r.bandwidth(f"bulk_read/{name}", size, sample(read, k, 1))
        assert dst[0] == 1 and dst[-1] == 1
        p.stdin.close()
        p.wait()


def failure(r, a):
    if a.kind != "pipe":
        return
    raised = []
    for _ in range(5):
        p = PipePeer()
        pid = p.call("pid")
        time.sleep(0.1)
        t = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        try:
            p.result()
        except EOFError:
            raised.append(time.monotonic() - t)
        p.close()
    r.times("failure/waiting_call_raises", raised, "ms")


def footprint(r, a):
    if a.kind != "pipe":
        return
    ps = [PipePeer() for _ in range(4)]
    pids = [p.call("pid") for p in ps]
    ms = [measuring.memory(p) for p in pids]
    r.value("rss/proc", sum(m[0] for m in ms) / 4, "MiB", 4)
    r.value("pss/proc", sum(m[1] for m in ms) / 4, "MiB", 4)
    r.value("rss/controller", measuring.memory()[0], "MiB")
    for p in ps:
        p.close()


BENCHES = dict(spawn=spawn, rtt=rtt, throughput=throughput, mesh=mesh, payload=payload, bulk=bulk,
               failure=failure, footprint=footprint)
KINDS = ("pipe", "unix", "asyncio", "zmq", "fork", "shm")

if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        globals()["serve_" + sys.argv[2]](*sys.argv[3:])
        sys.exit()
    kind = sys.argv[sys.argv.index("--kind") + 1] if "--kind" in sys.argv else ""
    measuring.run(f"raw {kind}", BENCHES, extra=lambda ap: ap.add_argument("--kind", choices=KINDS, required=True))
