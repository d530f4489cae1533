"""A process's messages to another host arrive, even if it ends at once: its agent has them, and sends the notice of the end after them."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from eventually import eventually

import monarch.actor
from monarch.actor import Actor, SupervisionError, endpoint, this_host
from monarch.actor.testing import isolated, local_hosts

MIB = 1 << 20


class Receiver(Actor):
    def __init__(self) -> None:
        self.seen: list[int] = []

    @endpoint
    def note(self, x: bytes) -> None:
        self.seen.append(len(x))

    @endpoint
    def noted(self) -> list[int]:
        return self.seen


class Sender(Actor):
    @endpoint
    def send(self, other: Any, sizes: list[int]) -> int:
        for size in sizes:
            other.note.broadcast(bytes(size))
        return os.getpid()


@isolated
def test_messages_sent_before_an_end_arrive():
    monarch.actor.unhandled_fault_hook = lambda failure: None
    with local_hosts(2) as hosts:
        sizes = [64 * MIB, 1, 3 * MIB]
        for place in (this_host(), hosts.slice(hosts=1)):
            receiver = place.spawn_procs().spawn("receiver", Receiver)
            for _ in range(2):
                senders = hosts.slice(hosts=0).spawn_procs()
                senders.spawn("sender", Sender).send.call_one(receiver, sizes).get()
                senders.stop().get()
            # The other case: this machine is the sender's.
            senders = this_host().spawn_procs()
            sender = senders.spawn("sender", Sender)
            os.kill(sender.send.call_one(receiver, sizes).get(), signal.SIGKILL)
            with pytest.raises(SupervisionError):
                sender.send.call_one(receiver, []).get()
            noted = eventually("nine messages", lambda to=receiver: to.noted.call_one().get(), lambda noted: len(noted) >= 9)
            assert noted == sizes * 3
