"""Ports and channels."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import threading

import pytest
from eventually import eventually
from fresh import lines, run
from mesh_actors import PortUser

from monarch.actor import (
    Actor,
    Channel,
    Port,
    PortReceiver,
    RankedPortReceiver,
    SupervisionError,
    UndeliverableMessageEnvelope,
    ValueMesh,
    endpoint,
    send,
    this_host,
)


class Plain(Actor):
    """Does not handle returned messages."""

    @endpoint
    def send(self, port, value, give_back=True):
        port.return_undeliverable = give_back
        port.send(value)

    @endpoint
    def alive(self):
        return True


class Answering(Actor):
    @endpoint(explicit_response_port=True)
    def answer(self, port, value):
        port.send(value)

    @endpoint(explicit_response_port=True)
    def answer_twice(self, port, value):
        port.send(value)
        try:
            port.send(value)
        except RuntimeError as e:
            self.second = str(e)

    @endpoint(explicit_response_port=True)
    def answer_later(self, port):
        self.port = port

    @endpoint
    def now(self, value):
        threading.Thread(target=self.port.send, args=(value,)).start()

    @endpoint
    def said(self):
        return self.second

    @endpoint(explicit_response_port=True)
    def refuse(self, port):
        port.exception(ValueError("refused"))

    @endpoint(explicit_response_port=True)
    def delegate(self, port, other):
        other.send.broadcast(port, "from the other")


@pytest.fixture(scope="module")
def procs():
    with this_host().spawn_procs({"gpus": 2}) as mesh:
        yield mesh


@pytest.fixture(scope="module")
def users(procs):
    return procs.spawn("users", PortUser)


@pytest.fixture(scope="module")
def answering(procs):
    return procs.spawn("answering", Answering)


def test_open_send_receive():
    port, receiver = Channel[int].open()
    assert isinstance(port, Port)
    assert isinstance(receiver, PortReceiver)
    first = receiver.recv()
    port.send(1)
    port.send(2)
    assert (first.get(), receiver.recv().get()) == (1, 2)


def test_port_delivers_each_item_once_in_order(users):
    port, receiver = Channel.open()
    users.slice(gpus=0).send.call_one(port, *range(1000)).get()
    assert [receiver.recv().get() for _ in range(1000)] == list(range(1000))


def test_receivers_waiting_before_the_items(users):
    port, receiver = Channel.open()
    futures = [receiver.recv() for _ in range(50)]
    users.slice(gpus=0).send.broadcast(port, *range(50))
    assert [f.get() for f in futures] == list(range(50))


def test_many_senders_and_threads(users):
    port, receiver = Channel.open()
    threads = [threading.Thread(target=lambda k=k: [port.send((k, i)) for i in range(100)]) for k in range(4)]
    users.send.broadcast(port, *[("rank", i) for i in range(100)])
    [t.start() for t in threads]
    [t.join() for t in threads]
    got = [receiver.recv().get() for _ in range(600)]
    for k in range(4):
        assert [i for s, i in got if s == k] == list(range(100))
    assert sorted(i for s, i in got if s == "rank") == sorted([*range(100)] * 2)


def test_receiver_is_an_async_iterator(users):
    async def main():
        port, receiver = Channel.open()
        users.slice(gpus=0).send.broadcast(port, 1, 2, 3)
        found = []
        async for item in receiver:
            found.append(item)
            if item == 3:
                return found

    assert asyncio.run(main()) == [1, 2, 3]


def test_exception(users):
    port, receiver = Channel.open()
    users.slice(gpus=0).send_exception.call_one(port, "went wrong").get()
    port.send("after")
    future = receiver.recv()
    with pytest.raises(ValueError, match="went wrong"):
        future.get()
    assert receiver.recv().get() == "after"
    assert future.exception() is future.exception()


def test_once():
    port, receiver = Channel.open(once=True)
    port.send("only")
    with pytest.raises(RuntimeError, match="already used"):
        port.send("again")
    with pytest.raises(RuntimeError, match="already used"):
        port.exception(ValueError())
    assert receiver.recv().get() == "only"
    with pytest.raises(ValueError, match="already used"):
        receiver.recv().get()


def test_once_with_an_async_iterator():
    async def main():
        port, receiver = Channel.open(once=True)
        port.send("only")
        return [item async for item in receiver]

    assert asyncio.run(main()) == ["only"]


def test_ranked(users):
    port, receiver = Channel.open_ranked()
    assert isinstance(receiver, RankedPortReceiver)
    port.send("no rank")
    with pytest.raises(ValueError, match="rank"):
        receiver.recv().get()
    send(users.had_client, (), {}, port)
    assert sorted([receiver.recv().get(), receiver.recv().get()]) == [(0, False), (1, False)]


def test_ranked_view_of_an_open_port(users):
    port, receiver = Channel.open()
    send(users.had_client, (), {}, port)
    assert sorted([receiver.ranked().recv().get() for _ in range(2)]) == [(0, False), (1, False)]


def test_send_with_choose_and_without_port(users):
    port, receiver = Channel.open()
    send(users.had_client, (), {}, port, "choose")
    assert receiver.recv().get() is False
    send(users.had_client, (), {})
    send(users.had_client, (), {}, selection="choose")
    with pytest.raises(ValueError, match="selection"):
        send(users.had_client, (), {}, port, "some")
    with pytest.raises(TypeError):
        send(users.had_client, (1, 2), {}, port)


def test_send_passes_errors_on(procs):
    class Failing(Actor):
        @endpoint
        def fail(self):
            raise ValueError("for the port")

        @endpoint
        def fine(self):
            return 1

    actor = procs.spawn("failing", Failing)
    port, receiver = Channel.open()
    send(actor.fail, (), {}, port)
    for _ in range(2):
        with pytest.raises(Exception, match="for the port"):
            receiver.recv().get()
    assert len(actor.fine.call().get()) == 2


def test_ports_travel_anywhere(users):
    first, second = users.slice(gpus=0), users.slice(gpus=1)
    theirs = first.open.call_one().get()
    theirs.send("from the client")
    assert first.receive.call_one().get() == "from the client"
    second.send.call_one(theirs, "from another actor").get()
    assert first.receive.call_one().get() == "from another actor"
    port, receiver = Channel.open()
    second.send.call_one({"deep": [port]}["deep"][0], {"port": port}).get()
    receiver.recv().get()["port"].send("through a message")
    assert receiver.recv().get() == "through a message"
    copy = pickle.loads(pickle.dumps(port))
    copy.send("through a plain pickle")
    assert receiver.recv().get() == "through a plain pickle"


def test_port_as_an_argument_of_init(procs):
    port, receiver = Channel.open()
    actor = procs.slice(gpus=0).spawn("keeps", PortUser, port)
    actor.send_kept.call_one("kept").get()
    assert receiver.recv().get() == "kept"


def test_unpickling_a_port_starts_no_client(users):
    port, receiver = Channel.open()
    users.send.call(port, "x").get()
    assert set(users.had_client.call().get().values()) == {False}
    assert receiver.recv().get() == "x"


def test_unpicklable_value_raises_at_once():
    port, receiver = Channel.open(once=True)
    with pytest.raises(TypeError, match="lock"):
        port.send(threading.Lock())
    port.send("instead")
    assert receiver.recv().get() == "instead"


# ---- explicit response ports


def test_explicit_port_answers_the_call(answering):
    found = answering.answer.call(7).get()
    assert isinstance(found, ValueMesh)
    assert list(found.items())[1][0].rank == 1
    assert list(found.values()) == [7, 7]
    assert answering.slice(gpus=1).answer.call_one(8).get() == 8
    assert sorted(f.get() for f in answering.answer.stream(9)) == [9, 9]
    assert answering.answer.choose(1).get() == 1


def test_second_message_is_refused_in_the_endpoint(answering):
    assert answering.slice(gpus=0).answer_twice.call_one(1).get() == 1
    assert "already used" in answering.slice(gpus=0).said.call_one().get()


def test_explicit_port_is_usable_later_from_a_thread(answering):
    one = answering.slice(gpus=0)
    future = one.answer_later.call_one()
    one.now.call_one("later").get()
    assert future.get() == "later"


def test_explicit_port_may_be_passed_on(answering, users):
    future = answering.slice(gpus=0).delegate.call_one(users.slice(gpus=1))
    assert future.get() == "from the other"


def test_exception_into_an_explicit_port(answering):
    with pytest.raises(Exception, match="refused"):
        answering.slice(gpus=0).refuse.call_one().get()
    assert answering.slice(gpus=0).answer.call_one(1).get() == 1


# ---- undeliverable


def port_of_an_ended_process():
    with this_host().spawn_procs() as mesh:
        return mesh.spawn("user", PortUser).open.call_one().get()


def test_undeliverable_message_comes_back_to_the_sender(users):
    user = users.slice(gpus=0)
    port = port_of_an_ended_process()

    # A message is lost if it is sent before the sender has received the notice of the end.
    def found_after_a_send() -> list[tuple[str, str, str]]:
        user.send.call_one(port, "lost").get()
        return user.came_back.call_one().get()

    found = eventually("a message came back", found_after_a_send)
    sender, dest, error = found[0]
    assert "users" in sender
    assert "port" in dest
    assert f"undeliverable message for {dest}" in error
    assert user.had_client.call_one().get() is False


def test_undeliverable_message_fails_an_unprepared_sender():
    done = run(
        """
        from monarch.actor import Channel, SupervisionError, this_host
        import monarch.actor, threading
        told = threading.Event()
        def hook(failure):
            print(failure.report().splitlines()[0].split(" (pid")[0].split(" port<")[0])
            told.set()
        monarch.actor.unhandled_fault_hook = hook
        import sys; sys.path.insert(0, sys.argv[1])
        from test_port import Plain, port_of_an_ended_process
        actor = this_host().spawn_procs().spawn("plain", Plain)
        port = port_of_an_ended_process()
        actor.send.call_one(port, 1, False).get()
        print(actor.alive.call_one().get())
        while not told.wait(0.02):
            actor.send.call_one(port, 1).exception()
        try:
            actor.alive.call_one().get()
        except SupervisionError as e:
            print("undeliverable message for" in str(e))
    """,
        os.path.dirname(__file__),
    )
    report = "The actor <root>.<test_port.Plain plain> and all its descendants have failed: undeliverable message for"
    assert lines(done.stdout) == ["True", report, "True"]


def test_envelope():
    envelope = UndeliverableMessageEnvelope("me", "you", "why")
    assert (envelope.sender(), envelope.dest(), envelope.error_msg()) == ("me", "you", "why")


def test_receiver_in_a_process_that_ends():
    with this_host().spawn_procs() as mesh:
        actor = mesh.spawn("user", PortUser)
        port = actor.open.call_one().get()
    port.return_undeliverable = False
    port.send("to nobody")
    with pytest.raises(SupervisionError):
        actor.receive.call_one().get()


class AsyncSender(Actor):
    """Never waits for credit: messages beyond it stay queued here."""

    def __init__(self):
        self.returned: list[str] = []

    @endpoint
    async def flood(self, port, count):
        for _ in range(count):
            port.send(bytes(1 << 20))

    @endpoint
    async def came_back(self):
        return self.returned

    def _handle_undeliverable_message(self, envelope):
        self.returned.append(envelope.error_msg())
        return True


class Deaf(Actor):
    """Opens a port and does not receive from it."""

    @endpoint
    def open(self):
        port, self.receiver = Channel.open()
        return port

    @endpoint
    def die(self):
        os.kill(os.getpid(), signal.SIGKILL)


def test_messages_waiting_for_credit_return_from_dead_receiver():
    with this_host().spawn_procs({"gpus": 2}) as mesh:
        deaf, sender = mesh.slice(gpus=0).spawn("deaf", Deaf), mesh.slice(gpus=1).spawn("sender", AsyncSender)
        # The window holds eight of the messages.
        sender.flood.call_one(deaf.open.call_one().get(), 12).get()
        assert sender.came_back.call_one().get() == []
        with pytest.raises(SupervisionError, match="Killed"):
            deaf.die.call_one().get()
        found = eventually("four messages came back", lambda: sender.came_back.call_one().get(), lambda found: len(found) >= 4)
        assert len(found) == 4 and all("undeliverable message for port<" in text for text in found)


class Returns(Actor):
    """Reports returned messages."""

    @endpoint
    def send(self, port, report, count):
        self.report = report
        for i in range(count):
            port.send(i)

    @endpoint
    def alive(self):
        return True

    def _handle_undeliverable_message(self, message):
        assert isinstance(message, UndeliverableMessageEnvelope)
        self.report.send(message.error_msg())
        return True


def test_first_message_to_an_ended_process_comes_back():
    gone = this_host().spawn_procs(name="gone")
    port = gone.spawn("deaf", Deaf).open.call_one().get()
    # The sender has no link to the owner of the port, and gets none.
    procs = this_host().spawn_procs()
    sender = procs.spawn("returns", Returns)
    sender.alive.call_one().get()
    gone.stop().get()
    report, came = Channel.open()
    sender.send.call_one(port, report, 3).get()
    for _ in range(3):
        assert "undeliverable" in came.recv().get()
    procs.stop().get()
