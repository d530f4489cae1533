"""Ports: a sending end that can be passed anywhere, and a receiving end that stays in the process that opened it."""

from __future__ import annotations

from _thread import allocate_lock

from monarch._core._native import PortMailbox, send_to_port, send_to_slot
from monarch._core._native.protocol import CLOSED, ERROR
from monarch._core.call.future import Future
from monarch._core.call.receive import Inbox, Receive
from monarch._core.call.received_mesh import reach
from monarch._core.process.current import current_process
from monarch._core.process.identity import new_uid, to_base58
from monarch._core.process.process import LocalProcess
from monarch._core.shape.generic import Generic

# The reason for a returned message whose receiver was alive. The native runtime compares the same text.
LOST_PARTS = "parts of it were lost on the way"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from monarch._core._native import Call, PendingCall, Result
    from monarch._core.process.parts import RunningActor

    R = TypeVar("R")
else:
    R = None


class PortTarget:
    """The receiver of the messages of a port, and whether the only message of a port was sent.

    `to` is the id of the mailbox in the process `proc`, or with `is_call` that of a pending call. `rank` is the rank of the sender.
    """

    __slots__ = ("_lock", "is_call", "once", "owed", "place", "proc", "rank", "to", "used")

    def __init__(self, proc: int, to: int, once: bool, is_call: bool = False, rank: int | None = None) -> None:
        self.proc = proc
        self.to = to
        self.once = once
        self.is_call = is_call
        self.rank = rank
        # For a port of another process: its host, and its job.
        self.place: tuple[int, int] | None = None
        # For the port of a call: the actor's set of answers that it owes.
        self.owed: set[tuple[int, int, int]] | None = None
        self.used = False
        self._lock = allocate_lock()

    def claim(self) -> None:
        """`RuntimeError` for a second message, if the port takes one."""
        if self.once:
            with self._lock:
                if self.used:
                    raise RuntimeError("port was already used: it takes one message")
                self.used = True

    def answered(self) -> None:
        if self.owed is not None:
            self.owed.discard((self.proc, self.to, self.rank or 0))


class Port(Generic[R]):
    """The sending end of a port, usable from any thread of any process of the job. Messages of one sender stay in order.

    `Channel.open` makes ports; a port can be an argument of calls.

    ```python
    from monarch.actor import Actor, Channel, Port, endpoint, this_host

    class Worker(Actor):
        @endpoint
        def report(self, port: Port[str]) -> None:
            port.send("half")
            port.send("done")

    with this_host().spawn_procs({"procs": 1}) as procs:
        port, receiver = Channel[str].open()
        procs.spawn("worker", Worker).report.broadcast(port)
        assert [receiver.recv().get(), receiver.recv().get()] == ["half", "done"]
    ```
    """

    __slots__ = ("__core__", "return_undeliverable")

    def __init__(self, target: PortTarget) -> None:
        self.__core__ = target
        self.return_undeliverable = True

    def send(self, obj: R) -> None:
        """Sends an object to the receiver, in order. An async sender never waits; a sync sender waits while the receiver has no room.

        Args:
            obj: any picklable object.

        Raises:
            RuntimeError: the port takes one message, and has been used.

        ```python
        from monarch.actor import Channel

        port, receiver = Channel[int].open(once=True)
        port.send(1)
        assert receiver.recv().get() == 1
        ```
        """
        target, native = self.__core__, current_process().native
        target.claim()
        try:
            if target.is_call:
                send_to_slot(native, target.proc, target.to, target.rank or 0, obj)
                target.answered()
            else:
                send_to_port(native, target.proc, target.to, obj, target.rank, False, self.return_undeliverable)
        except BaseException:  # the object cannot be pickled: the port may be used again
            target.used = False
            raise

    def exception(self, exc: BaseException) -> None:
        """Makes the receiver raise `exc`."""
        target, native = self.__core__, current_process().native
        target.claim()
        if target.is_call:
            from monarch._core.call.answer import pack_plain_error

            native.reply(target.proc, target.to, target.rank or 0, ERROR, pack_plain_error(exc))
            target.answered()
        else:
            from monarch._core.pickle.remote_exception import pack_exception

            send_to_port(native, target.proc, target.to, pack_exception(exc), target.rank, True, self.return_undeliverable)

    def __reduce__(self) -> tuple[Any, ...]:
        from monarch._core.call.shared_handle import share_if_plain

        share_if_plain()
        process = current_process()
        target = self.__core__
        agent, job = target.place or (process.agent_uid, process.peers.job)
        return (_received_port, (target.proc, target.to, target.once, target.is_call, target.rank, self.return_undeliverable, agent, job))

    def __repr__(self) -> str:
        return f"<Port {to_base58(self.__core__.to)}>"


def ranked_port(port: Port[R], rank: int) -> Port[R]:
    """The same port for the answer of a rank, which its receiver gets from `ranked()`. The answer is dropped if the receiver is gone."""
    target = port.__core__
    found: Port[R] = Port(PortTarget(target.proc, target.to, target.once, target.is_call, rank))
    found.return_undeliverable = False
    return found


def forward(
    port: Port[Any], cell: PendingCall, count: int, error: Callable[[PendingCall, Result, int], BaseException], only: int | None
) -> None:
    """Passes the answers of a call on to the port, ranked, as they arrive. `only`: the rank that was called, if it was one."""

    def expire() -> None:
        """Passes on the end of the call by its deadline, for each rank without an answer."""
        end = cell.error()
        assert end is not None
        for rank in [one.rank for one in cell.unanswered() or ()]:
            rank = only if only is not None else rank
            ranked_port(port, rank).exception(error(cell, end, rank))

    def run() -> None:
        for i in range(count):
            cell.wait(i)
            result = cell.arrival(i)
            if result is None:
                return expire()
            rank = only if only is not None else result.rank
            to = ranked_port(port, rank)
            if result.status == 0:
                to.send(result.load())
            else:
                to.exception(error(cell, result, rank))

    current_process().execution.start_thread(run)


def _received_port(proc: int, to: int, once: bool, slot: bool, rank: int | None, give_back: bool, agent: int, job: int) -> Port[Any]:
    port: Port[Any] = Port(PortTarget(proc, to, once, slot, rank))
    port.return_undeliverable = give_back
    process = current_process()
    if agent != process.agent_uid:
        port.__core__.place = (agent, job)
        reach(process, job, [(proc, agent)])
    return port


class PortReceiver(Generic[R]):
    """The receiving end: each item goes to one `recv`, in order; `async for` works.

    Dropping the receiver closes the port: later messages are dropped, and their senders continue. A Future of `recv` keeps the port open
    as long as it is referenced.
    """

    __slots__ = ("_inbox",)

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox

    def recv(self) -> Future[R]:
        """The next item of the port, received when the Future is first observed.

        Returns:
            A Future of the item.

        Raises:
            Exception: from the Future: the exception that a sender sent with `Port.exception`.

        ```python
        from monarch.actor import Channel

        port, receiver = Channel[str].open()
        port.send("a")
        port.exception(ValueError("no more"))
        assert receiver.recv().get() == "a"
        assert isinstance(receiver.recv().exception(), ValueError)
        ```
        """
        return Receive(self._inbox, _item)

    def ranked(self) -> RankedPortReceiver[R]:
        """The same receiver with items as `(rank, value)`."""
        return RankedPortReceiver(self._inbox)

    def __aiter__(self) -> PortReceiver[R]:
        return self

    async def __anext__(self) -> R:
        if self._inbox.once and self._inbox.taken:
            raise StopAsyncIteration
        try:
            return await self.recv()
        except EOFError:
            raise StopAsyncIteration from None


class RankedPortReceiver(PortReceiver[tuple[int, R]]):
    """Items are `(rank, value)`; a message without a rank raises `ValueError`."""

    __slots__ = ()

    def recv(self) -> Future[tuple[int, R]]:
        return Receive(self._inbox, _ranked_item)


def _item(cell: PendingCall) -> Any:
    result = cell.result(0)
    assert result is not None
    if result.status == CLOSED:
        raise EOFError("Port closed: the receiver is gone")
    if result.status == ERROR:
        from monarch._core.pickle.remote_exception import unpack_exception

        raise unpack_exception(result.load())
    return result.load()


def _ranked_item(cell: PendingCall) -> Any:
    value = _item(cell)
    result = cell.result(0)
    assert result is not None
    if result.sender_rank is None:
        raise ValueError("the message into this ranked port carries no rank")
    return result.sender_rank, value


class Channel(Generic[R]):
    """Opens ports: messages outside of calls, such as progress, or the results of many senders.

    ```python
    from monarch.actor import Channel

    port, receiver = Channel[int].open()
    for i in range(3):
        port.send(i)
    assert [receiver.recv().get() for _ in range(3)] == [0, 1, 2]
    ```
    """

    @classmethod
    def open(cls, once: bool = False) -> tuple[Port[R], PortReceiver[R]]:
        """Opens a port of this process.

        Args:
            once: the port takes one message.

        Returns:
            The port, which can be sent to other processes, and its receiver, which cannot.

        Raises:
            RuntimeError: this process is a fork of a process that used Monarch.

        ```python
        from monarch.actor import Channel

        port, receiver = Channel[str].open()
        port.send("ready")
        assert receiver.recv().get(timeout=60) == "ready"
        ```
        """
        process = current_process()
        mailbox = PortMailbox(process.native, new_uid())
        return Port(PortTarget(process.uid, mailbox.id, once)), PortReceiver(Inbox(mailbox, once))

    @classmethod
    def open_ranked(cls, once: bool = False) -> tuple[Port[R], RankedPortReceiver[R]]:
        """A port and a receiver with items as `(rank, value)`."""
        port, receiver = cls.open(once)
        return port, receiver.ranked()


def reply_port(actor: RunningActor, call: Call) -> Port[Any]:
    """The port that an explicit-port endpoint answers through: one message, with its rank."""
    port: Port[Any] = Port(PortTarget(call.caller, call.slot, True, True, call.answer))
    if call.wants_reply:
        port.__core__.owed = actor.owed
        actor.owed.add((call.caller, call.slot, call.answer))
    return port


class UndeliverableMessageEnvelope:
    """A port message that was returned: its sender, its port, and the reason of the failed delivery."""

    __slots__ = ("_dest", "_error", "_sender")

    def __init__(self, sender: str, dest: str, error: str) -> None:
        self._sender = sender
        self._dest = dest
        self._error = error

    def sender(self) -> str:
        return self._sender

    def dest(self) -> str:
        return self._dest

    def error_msg(self) -> str:
        return self._error


def envelope_of(actor: RunningActor | None, body: bytes) -> UndeliverableMessageEnvelope:
    from monarch._core.errors.text import undeliverable

    sender = "client" if actor is None else actor.display
    dest = f"port<{to_base58(int.from_bytes(body[8:16], 'little'))}>"
    # Any other body contains the process of the receiver.
    why = LOST_PARTS if body[16:] == LOST_PARTS.encode() else "the process of its receiver has ended"
    return UndeliverableMessageEnvelope(sender, dest, undeliverable(dest, sender, dest, why))


def undelivered(process: LocalProcess, body: bytes) -> None:
    """Handles a message of this process that was returned. Called on the housekeeping thread."""
    sender = int.from_bytes(body[:8], "little")
    actor = process.actors.get(sender)
    if actor is not None:
        actor.mailbox.push_event(b"U" + body)
    elif not sender:
        from monarch._core.errors.text import undeliverable

        # The message was a broadcast: its sender is not recorded, and no call waits for it.
        info = process.meshes.known.get(int.from_bytes(body[8:16], "little"))
        dest, ours = "an actor" if info is None else info.name, f"pid {process.pid} on {process.host}"
        _warn(undeliverable(f"{dest}: a broadcast", ours, dest, LOST_PARTS))
    elif process.is_client and not process.closed:
        _warn(envelope_of(None, body).error_msg())


def _warn(text: str) -> None:
    import logging

    logging.getLogger("monarch").warning("%s", text)
