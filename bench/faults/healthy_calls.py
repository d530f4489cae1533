"""Healthy jobs that wait: for events, for each other at barriers, for items of queues and channels, for long calls."""

from __future__ import annotations

import asyncio
import os
import queue
import socket
import subprocess
import threading
import time
from typing import Any

from bench.faults.actors import Trainer
from bench.faults.program import Fault, forever, ready, rest, until_closed
from monarch.actor import Actor, Channel, Port, concurrent_endpoint, current_rank, endpoint, this_host

_MIB = 1 << 20


class Barrier(Actor):
    """Answers when all ranks have come."""

    def __init__(self, ranks: int) -> None:
        self.ranks, self.come, self.opened = ranks, 0, asyncio.Event()

    @concurrent_endpoint
    async def come_in(self) -> None:
        opened = self.opened
        self.come += 1
        if self.come == self.ranks:
            self.come, self.opened = 0, asyncio.Event()
            opened.set()
        await opened.wait()


class Member(Actor):
    """Works, then waits at a barrier."""

    @endpoint
    async def step(self, barrier: Any, slow: float) -> None:
        await asyncio.sleep(slow if current_rank().rank == 0 else 0.01)
        await barrier.come_in.call_one()


class BlockingMember(Actor):
    """The same with threads."""

    @endpoint
    def step(self, barrier: Any, slow: float) -> None:
        time.sleep(slow if current_rank().rank == 0 else 0.01)  # sleeps: the work
        barrier.come_in.call_one().get()


class Waiter(Actor):
    """Waits for events."""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    @endpoint
    async def wait(self) -> None:
        await self.event.wait()

    @concurrent_endpoint
    async def poll(self) -> None:
        await self.event.wait()

    @concurrent_endpoint
    async def version(self) -> int:
        return 1

    @endpoint
    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Sleeper(Actor):
    """Has calls that are long."""

    @endpoint
    def block(self, seconds: float) -> None:
        time.sleep(seconds)  # sleeps: a long call that is normal


class Stage(Actor):
    """A stage of a pipeline, or an end of it."""

    @endpoint
    def after(self, other: Any) -> None:
        self.other = other

    @endpoint
    def pass_on(self, item: bytes) -> None:
        if self.other is not None:
            self.other.pass_on.broadcast(item)

    @endpoint
    def flush(self) -> int:
        return 1 if self.other is None else self.other.flush.call_one().get()

    @endpoint
    def produce(self, out: Port[int], pause: float) -> None:
        for item in range(1_000_000):
            out.send(item)
            time.sleep(pause)  # sleeps: the time of an item

    @endpoint
    def consume(self, begun: Port[Any]) -> None:
        port, items = Channel[int].open()
        begun.send(port)
        while True:
            items.recv().get()


class Dispatcher(Actor):
    """Gives tasks to workers that ask for them."""

    def __init__(self) -> None:
        self.tasks: asyncio.Queue[int] = asyncio.Queue()

    @concurrent_endpoint
    async def add(self, task: int) -> None:
        await self.tasks.put(task)

    @concurrent_endpoint
    async def next(self) -> int:
        return await self.tasks.get()


class Worker(Actor):
    """Works on tasks of a dispatcher."""

    @endpoint
    async def run(self, dispatcher: Any) -> None:
        while True:
            await asyncio.sleep(0.01 * (1 + await dispatcher.next.call_one()))

    @endpoint
    async def gather(self, workers: Any) -> int:
        return len(await workers.pid.call())


class Server(Actor):
    """Has parameters that workers read and change."""

    def __init__(self) -> None:
        self.parameters = bytes(_MIB)

    @endpoint
    def pull(self) -> bytes:
        return self.parameters

    @endpoint
    def push(self, parameters: bytes) -> None:
        self.parameters = parameters


class Pusher(Actor):
    @endpoint
    def round(self, server: Any) -> None:
        server.push.call_one(server.pull.call_one().get()).get()


class Reader(Actor):
    """Gets records from a thread, and rewards from a server."""

    def __init__(self) -> None:
        self.records = queue.Queue[int]()

    def _produce(self) -> None:
        while True:
            time.sleep(9.0)  # sleeps: the time of a record
            self.records.put(1)

    @endpoint
    def read(self) -> None:
        """A thread that the endpoint does not need has failed."""
        helper = threading.Thread(target=int, args=("x",), name="helper")
        helper.start()
        helper.join()
        threading.Thread(target=self._produce, name="producer", daemon=True).start()
        while True:
            self.records.get()

    @endpoint
    def wait_for_thread(self) -> None:
        """A program has ended, and was not waited for."""
        self.program = subprocess.Popen(["true"])
        reads, writes = os.pipe()
        threading.Thread(target=self._write, args=(writes,), name="writer", daemon=True).start()
        os.read(reads, 1)

    def _write(self, pipe: int) -> None:
        time.sleep(60.0)  # sleeps: the time of a record
        os.write(pipe, b"1")

    @endpoint
    def ask(self, port: int) -> None:
        while True:
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(b"1")
                connection.recv(1)


def barriers() -> None:
    """Coroutines of four ranks wait at a barrier, for the slowest one."""
    barrier = this_host().spawn_procs(name="barriers").spawn("barrier", Barrier, 4)
    members = this_host().spawn_procs({"gpus": 4}, name="members").spawn("member", Member)
    forever(lambda: members.step.call(barrier, 0.3).get())


def long_barrier() -> None:
    """Threads of three ranks wait at a barrier for the first rank, which works for a minute."""
    barrier = this_host().spawn_procs(name="barriers").spawn("barrier", Barrier, 4)
    members = this_host().spawn_procs({"gpus": 4}, name="members").spawn("member", BlockingMember)
    rest(members.step.call(barrier, 60.0))


def waits_for_event() -> None:
    """Endpoints that wait for an event which has not come yet."""
    waiters = this_host().spawn_procs({"gpus": 4}, name="procs").spawn("waiter", Waiter)
    rest(waiters.wait.call())


def long_polls() -> None:
    """Concurrent endpoints that wait, beside short calls to the same actor."""
    waiter = this_host().spawn_procs(name="procs").spawn("waiter", Waiter)
    polls = [waiter.poll.call_one() for _ in range(50)]
    forever(lambda: (waiter.version.call_one().get(), polls))


def sleeping_coroutines() -> None:
    waiters = this_host().spawn_procs({"gpus": 4}, name="procs").spawn("waiter", Waiter)
    rest(waiters.sleep.call(120.0))


def sleeping_threads() -> None:
    waiters = this_host().spawn_procs({"gpus": 4}, name="procs").spawn("sleeper", Sleeper)
    rest(waiters.block.call(120.0))


def queue_behind_long_call() -> None:
    """A few hundred messages that wait behind a long call; no more come."""
    waiter = this_host().spawn_procs(name="procs").spawn("sleeper", Sleeper)
    waiter.block.broadcast(120.0)
    rest([waiter.block.call_one(0.0) for _ in range(300)][-1])


def pipeline() -> None:
    """Four stages of messages without answers; the producer waits for the last stage after each hundred."""
    procs = this_host().spawn_procs({"procs": 4}, name="stages")
    stages = [procs.slice(procs=index).spawn(f"stage{index}", Stage) for index in range(4)]
    for index, stage in enumerate(stages):
        stage.after.call_one(stages[index + 1] if index < 3 else None).get()

    def batch() -> None:
        for _ in range(100):
            stages[0].pass_on.broadcast(bytes(1000))
        stages[0].flush.call_one().get()

    forever(batch)


def _producer(pause: float) -> None:
    procs = this_host().spawn_procs({"procs": 2}, name="procs")
    producer, consumer = procs.slice(procs=0).spawn("producer", Stage), procs.slice(procs=1).spawn("consumer", Stage)
    begun, ports = Channel[Any].open()
    consuming = consumer.consume.call_one(begun)
    producer.produce.broadcast(ports.recv().get(), pause)
    rest(consuming)


def producer_and_consumer() -> None:
    """Items through a channel, a hundred a second."""
    _producer(0.01)


def slow_producer() -> None:
    """A consumer that waits most of the time."""
    _producer(30.0)


def work_queue() -> None:
    """Workers that wait for tasks of a dispatcher, which has fewer than they could do."""
    dispatcher = this_host().spawn_procs(name="dispatchers").spawn("dispatcher", Dispatcher)
    workers = this_host().spawn_procs({"gpus": 4}, name="procs").spawn("worker", Worker)
    workers.run.broadcast(dispatcher)
    pause = threading.Event()
    forever(lambda: (dispatcher.add.call_one(1).get(), pause.wait(0.02)))


def fan_out() -> None:
    """An actor that calls all ranks of another mesh, again and again."""
    trainers = this_host().spawn_procs({"gpus": 6}, name="workers").spawn("trainer", Trainer)
    worker = this_host().spawn_procs(name="procs").spawn("worker", Worker)
    forever(lambda: worker.gather.call_one(trainers).get())


def parameter_server() -> None:
    """Three ranks that pull and push a MiB."""
    server = this_host().spawn_procs(name="servers").spawn("server", Server)
    pushers = this_host().spawn_procs({"gpus": 3}, name="procs").spawn("pusher", Pusher)
    forever(lambda: pushers.round.call(server).get())


def streams() -> None:
    """The answers of all ranks as they come."""
    trainers = this_host().spawn_procs({"gpus": 4}, name="workers").spawn("trainer", Trainer)
    forever(lambda: [answer.get() for answer in trainers.step.stream(0.05)])


def draining_queue() -> None:
    """A long queue that gets shorter: twenty thousand messages are sent again when they are done."""
    trainer = this_host().spawn_procs(name="workers").spawn("trainer", Trainer)

    def burst() -> None:
        for _ in range(20_000):
            trainer.step.broadcast(0.0)
        trainer.pid.call_one().get()

    forever(burst)


def coroutine_client() -> None:
    """A client that is a coroutine."""
    trainers = this_host().spawn_procs({"gpus": 2}, name="workers").spawn("trainer", Trainer)

    async def main() -> None:
        await trainers.pid.call()
        ready()
        while True:
            await asyncio.gather(trainers.step.call(0.05), trainers.step.call(0.05))

    until_closed()
    asyncio.run(main())


def many_actors() -> None:
    """Two hundred actors in two procs."""
    procs = this_host().spawn_procs({"gpus": 2}, name="procs")
    actors = [procs.spawn(f"trainer{index}", Trainer) for index in range(100)]
    forever(lambda: [call.get() for call in [actor.pid.call() for actor in actors]])


def ended_helper() -> None:
    """Records come slowly from a living thread; another thread has ended with an exception."""
    rest(this_host().spawn_procs({"gpus": 2}, name="procs").spawn("reader", Reader).read.call())


def pipe_of_thread() -> None:
    """Endpoints wait for a byte of a pipe from a thread of their process."""
    rest(this_host().spawn_procs({"gpus": 2}, name="procs").spawn("reader", Reader).wait_for_thread.call())


def server_in_turns() -> None:
    """Three ranks ask a server again and again that answers one of them at a time."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            connection = server.accept()[0]
            with connection:
                connection.recv(1)
                time.sleep(0.8)  # sleeps: the time of an answer
                connection.sendall(b"1")

    threading.Thread(target=serve, name="server", daemon=True).start()
    rest(this_host().spawn_procs({"gpus": 3}, name="procs").spawn("reader", Reader).ask.call(server.getsockname()[1]))


HEALTHY = (
    Fault("ended_helper", ended_helper, "", 6.5),
    Fault("pipe_of_thread", pipe_of_thread, "", 6.5),
    Fault("server_in_turns", server_in_turns, "", 7.0),
    Fault("barriers", barriers, "", 1.0),
    Fault("long_barrier", long_barrier, "", 6.0),
    Fault("waits_for_event", waits_for_event, "", 6.0),
    Fault("long_polls", long_polls, "", 6.0),
    Fault("sleeping_coroutines", sleeping_coroutines, "", 6.0),
    Fault("sleeping_threads", sleeping_threads, "", 6.0),
    Fault("queue_behind_long_call", queue_behind_long_call, "", 6.0),
    Fault("pipeline", pipeline, "", 1.0),
    Fault("producer_and_consumer", producer_and_consumer, "", 6.0),
    Fault("slow_producer", slow_producer, "", 6.0),
    Fault("work_queue", work_queue, "", 2.0),
    Fault("fan_out", fan_out, "", 1.0),
    Fault("parameter_server", parameter_server, "", 1.0),
    Fault("streams", streams, "", 1.0),
    Fault("draining_queue", draining_queue, "", 1.0),
    Fault("coroutine_client", coroutine_client, "", 1.0),
    Fault("many_actors", many_actors, "", 1.0),
)
