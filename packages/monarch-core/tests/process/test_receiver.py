"""Receivers of ports: the claim of a receive, and the outcome for senders whose receiver is dropped."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from eventually import eventually
from fresh import lines, run
from worker_processes import Workers

from monarch._core.process.current import current_process
from monarch.actor import Accumulator, Actor, Channel, Port, RankedPortReceiver, endpoint, this_host

# The window of a sender holds eight of these.
LARGE = 1 << 20


class Producer(Actor):
    """Sends from its own thread, which waits for credit; does not handle returned messages."""

    @endpoint
    def produce(self, out: Port[Any], count: int, size: int = 0) -> int:
        for i in range(count):
            out.send(bytes(size) if size else i)
        return count

    @endpoint
    def ping(self) -> str:
        return "alive"


class AsyncProducer(Actor):
    """Its loop does not wait for credit: messages wait in its process."""

    @endpoint
    async def produce(self, out: Port[Any], count: int, size: int = 0) -> int:
        for i in range(count):
            out.send(bytes(size) if size else i)
        return count

    @endpoint
    async def ping(self) -> str:
        return "alive"


class Consumer(Actor):
    """Opens a port, and drops its receiver on request."""

    @endpoint
    def open(self) -> Port[Any]:
        port, self.receiver = Channel[Any].open()
        return port

    @endpoint
    def take(self, count: int) -> list[int]:
        return [len(self.receiver.recv().get()) for _ in range(count)]

    @endpoint
    def drop(self) -> None:
        del self.receiver
        gc.collect()

    @endpoint
    def dropped(self) -> int:
        return dropped()


class Answering(Actor):
    def __init__(self) -> None:
        self.ports: list[Port[Any]] = []

    @endpoint(explicit_response_port=True)
    def later(self, port: Port[Any]) -> None:
        self.ports.append(port)

    @endpoint
    def answer_all(self) -> int:
        ports, self.ports = self.ports, []
        for port in ports:
            port.send("late")
        return len(ports)


def dropped() -> int:
    """The number of messages to dropped receivers of this process so far."""
    return json.loads(current_process().native.state())["dropped_items"]


@pytest.fixture(scope="module")
def procs() -> Iterator[Any]:
    with this_host().spawn_procs({"gpus": 2}) as mesh:
        yield mesh


@pytest.fixture(params=[Producer, AsyncProducer])
def producer(request: pytest.FixtureRequest, procs: Any) -> Any:
    return procs.slice(gpus=0).spawn("producer", request.param)


def first(producer: Any, count: int, size: int = 0) -> tuple[list[Any], Any]:
    """The first two of many items; the receiver is dropped."""
    port, receiver = Channel[Any].open()
    sent = producer.produce.call_one(port, count, size)
    return [receiver.recv().get() for _ in range(2)], sent


def test_sender_goes_on_after_receiver_was_dropped(producer: Any):
    before = dropped()
    got, sent = first(producer, 100)
    gc.collect()
    assert got == [0, 1] and sent.get() == 100
    assert producer.ping.call_one().get() == "alive"
    eventually("98 items were dropped", lambda: dropped() - before, lambda count: count == 98)


def test_sender_without_credit_goes_on_after_drop(producer: Any):
    before = dropped()
    got, sent = first(producer, 100, LARGE)
    gc.collect()
    assert [len(item) for item in got] == [LARGE] * 2 and sent.get() == 100
    assert producer.ping.call_one().get() == "alive"
    eventually("98 items were dropped", lambda: dropped() - before, lambda count: count == 98)


def test_sender_waiting_for_credit_goes_on_after_drop(procs: Any):
    """The sender is in `send` when the receiver is dropped."""
    consumer, producer = procs.slice(gpus=1).spawn("consumer", Consumer), procs.slice(gpus=0).spawn("producer", Producer)
    port = consumer.open.call_one().get()
    sent = producer.produce.call_one(port, 40, LARGE)
    # The sender could send this many after two were taken.
    assert consumer.take.call_one(2).get() == [LARGE] * 2
    with pytest.raises(TimeoutError):
        sent.get(timeout=0)
    consumer.drop.call_one().get()
    assert sent.get() == 40
    eventually("38 items were dropped", lambda: consumer.dropped.call_one().get(), lambda count: count == 38)


def test_sender_in_the_same_process_goes_on():
    port, receiver = Channel[bytes].open()
    sent = threading.Event()

    def send() -> None:
        for _ in range(40):
            port.send(bytes(LARGE))
        sent.set()

    thread = threading.Thread(target=send)
    thread.start()
    assert len(receiver.recv().get()) == LARGE
    assert not sent.is_set()
    del receiver
    gc.collect()
    thread.join()
    assert sent.is_set()


def test_senders_on_other_hosts_go_on():
    with Workers(2) as workers, workers.attach() as hosts:
        mesh = hosts.spawn_procs()
        consumer, producer = mesh.slice(hosts=0).spawn("consumer", Consumer), mesh.slice(hosts=1).spawn("producer", Producer)
        # The messages go to the client, and from host to host.
        got, sent = first(producer, 40, LARGE)
        gc.collect()
        assert len(got) == 2 and sent.get() == 40
        sent = producer.produce.call_one(consumer.open.call_one().get(), 40, LARGE)
        assert consumer.take.call_one(2).get() == [LARGE] * 2
        consumer.drop.call_one().get()
        assert sent.get() == 40 and producer.ping.call_one().get() == "alive"


def test_pending_receive_keeps_its_receiver(procs: Any):
    producer = procs.slice(gpus=0).spawn("producer", Producer)

    def start(once: bool) -> Any:
        port, receiver = Channel[Any].open(once=once)
        producer.produce.broadcast(port, 1)
        return receiver.recv()

    for once in (False, True):
        future = start(once)
        gc.collect()
        assert producer.ping.call_one().get() == "alive"
        assert future.get() == 0 and future.get() == 0


def test_observed_receive_lets_its_receiver_go():
    port, receiver = Channel[int].open()
    future = receiver.recv()
    port.send(1)
    assert future.get() == 1
    before = dropped()
    del receiver
    gc.collect()
    port.send(2)
    assert (dropped() - before, future.get()) == (1, 1)


def test_receives_claim_in_order_of_observation():
    port, receiver = Channel[str].open()
    first, second = receiver.recv(), receiver.recv()
    port.send("a")
    port.send("b")
    assert (second.get(), first.get(), second.get()) == ("a", "b", "a")


def test_unobserved_receive_claims_nothing():
    port, receiver = Channel[str].open()
    receiver.recv()
    kept = receiver.recv()
    assert repr(kept) == "<Future pending>"
    port.send("a")
    assert receiver.recv().get() == "a"
    port.send("b")
    assert kept.get() == "b"


def test_unobserved_receive_leaves_a_once_port():
    port, receiver = Channel[str].open(once=True)
    receiver.recv()
    ranked = receiver.ranked()
    assert isinstance(ranked, RankedPortReceiver)
    port.send("only")
    assert receiver.recv().get() == "only"
    for used in (receiver, ranked):
        with pytest.raises(ValueError, match="already used"):
            used.recv().get()


def test_timeout_leaves_the_item_for_the_next():
    for once in (False, True):
        port, receiver = Channel[str].open(once=once)
        late = receiver.recv()
        with pytest.raises(TimeoutError):
            late.get(timeout=0)
        port.send("item")
        assert receiver.recv().get() == "item"
    with pytest.raises(ValueError, match="already used"):
        late.get()


def test_receive_stays_usable_after_a_timeout():
    port, receiver = Channel[str].open()
    late = receiver.recv()
    for _ in range(3):
        with pytest.raises(TimeoutError):
            late.get(timeout=0)
    port.send("item")
    assert late.get() == "item"


def test_timeout_of_one_observer_keeps_the_others():
    port, receiver = Channel[str].open()
    future = receiver.recv()
    got: list[str] = []
    thread = threading.Thread(target=lambda: got.append(future.get()))
    thread.start()
    eventually("one observer", lambda: future._observers, lambda count: count == 1)  # pyright: ignore
    with pytest.raises(TimeoutError):
        future.get(timeout=0)
    port.send("item")
    thread.join()
    assert got == ["item"] and future.get() == "item"


def test_cancelled_receives_give_items_back_in_order():
    async def main() -> list[int]:
        port, receiver = Channel[int].open()
        tasks = [asyncio.create_task(receive(receiver)) for _ in range(3)]
        futures = [receiver.recv().as_asyncio() for _ in range(2)]
        await asyncio.sleep(0)
        for number in range(5):
            port.send(number)
        # The items are there, and the loop has not read them.
        for waiting in (tasks[1], futures[0], tasks[2], tasks[0], futures[1]):
            waiting.cancel()
        await asyncio.gather(*tasks, *futures, return_exceptions=True)
        port.send(5)
        return [await receiver.recv() for _ in range(6)]

    async def receive(receiver: Any) -> int:
        return await receiver.recv()

    # Futures were observed before the tasks ran: they have the first items.
    assert asyncio.run(main()) == [0, 1, 2, 3, 4, 5]


def test_cancelled_receive_passes_its_item_on():
    async def main() -> int:
        port, receiver = Channel[int].open()
        first, second = receiver.recv().as_asyncio(), receiver.recv().as_asyncio()
        port.send(7)
        first.cancel()
        return await second

    assert asyncio.run(main()) == 7


def test_waiting_for_a_time_loses_no_item():
    async def main() -> list[int]:
        port, receiver = Channel[int].open()
        got: list[int] = []
        for number in range(50):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(receiver.recv(), timeout=0)
            port.send(number)
        while len(got) < 50:
            got.append(await asyncio.wait_for(receiver.recv(), timeout=20))
        return got

    assert asyncio.run(main()) == list(range(50))


def test_dropped_future_gives_its_item_back():
    port, receiver = Channel[int].open()
    loop = asyncio.new_event_loop()

    async def main() -> None:
        receiver.recv().as_asyncio()
        port.send(1)

    loop.run_until_complete(main())
    loop.close()
    del loop
    gc.collect()
    assert receiver.recv().get() == 1


def test_async_for_ends_with_a_break(producer: Any):
    async def main() -> list[int]:
        port, receiver = Channel[int].open()
        producer.produce.broadcast(port, 100)
        got: list[int] = []
        async for item in receiver:
            got.append(item)
            if item == 3:
                break
        return got

    assert asyncio.run(main()) == [0, 1, 2, 3]
    gc.collect()
    assert producer.ping.call_one().get() == "alive"


def test_dropped_ranked_receiver_closes_quietly(procs: Any):
    producers = procs.spawn("producers", Producer)
    port, receiver = Channel[Any].open_ranked()
    producers.produce.broadcast(port, 100)
    del receiver
    gc.collect()
    assert list(producers.ping.call().get().values()) == ["alive"] * 2


def test_answers_to_dropped_callers_are_dropped(procs: Any):
    answering = procs.spawn("answering", Answering)
    answering.later.call()
    list(answering.later.stream())
    kept = answering.slice(gpus=0).later.call_one()
    gc.collect()
    assert list(answering.answer_all.call().get().values()) == [3, 2]
    assert kept.get() == "late"


def test_dropped_accumulator_disturbs_no_actor(procs: Any):
    answering = procs.spawn("answering", Answering)
    Accumulator(answering.later, "", lambda a, b: a + b).accumulate()
    gc.collect()
    assert list(answering.answer_all.call().get().values()) == [1, 1]
    total = Accumulator(answering.later, "", lambda a, b: a + b).accumulate()
    assert list(answering.answer_all.call().get().values()) == [1, 1]
    assert total.get() == "latelate"


def test_script_leaves_with_senders_still_sending():
    done = run(
        """
        import asyncio, time
        from monarch.actor import Actor, Channel, Port, endpoint, this_host
        class Producer(Actor):
            @endpoint
            def run(self, out: Port):
                while True:
                    out.send(b"x" * 2000)
                    time.sleep(0)
        class Consumer(Actor):
            def __init__(self):
                self.port, self.receiver = Channel.open()
            @endpoint
            async def open(self):
                return self.port
            @endpoint
            async def run(self, done: Port):
                for _ in range(50):
                    await self.receiver.recv()
                done.send("enough")
                while True:
                    await self.receiver.recv()
        async def main():
            producers = [this_host().spawn_procs().spawn("producer", Producer) for _ in range(2)]
            consumers = [this_host().spawn_procs().spawn("consumer", Consumer) for _ in range(2)]
            done, receiver = Channel.open()
            for producer, consumer in zip(producers, consumers):
                producer.run.broadcast(await consumer.open.call_one())
                consumer.run.broadcast(done)
            print(await receiver.recv())
        asyncio.run(main())
    """
    )
    assert lines(done.stdout) == ["enough"] and done.stderr == ""
