"""One method of the actors of a handle, as all adverbs call it: the checks before a message is sent, and the results of its answers.

An error before the send is returned, not raised: each adverb raises it in its own way. A refusal that the script sees counts as a failure
that it has seen, so that the failure does not end the program too.
"""

from __future__ import annotations

from monarch._core._native import Caller
from monarch._core._native.protocol import CLOSED, DEADLINE, ERROR, FIRST_ERROR, OK, PROC_ENDED, UNDELIVERED
from monarch._core.call.arguments import check_arguments
from monarch._core.call.future import PENDING, Future, new_future, unseen_failure
from monarch._core.call.late_call import LateCall
from monarch._core.process import root_fault
from monarch._core.process.current import current_process
from monarch._core.process.mesh_info import view_of
from monarch._core.shape.shape import Shape
from monarch._core.shape.slice import Slice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from monarch._core._native import PendingCall, Result
    from monarch._core.call.actor_ranks import ActorRanks
    from monarch._core.call.value_mesh import ValueMesh
    from monarch._core.errors.failure import MeshFailure

# The number of ranks that a text names.
_SHOWN = 8


class CallTarget:
    """The method `name` of the actors `ranks`. `is_explicit`: it answers by a port. `method` is None for one that all actors have.

    `timeout`: the seconds that a call may take, besides the deadline of the calling code.
    """

    __slots__ = ("_caller", "_leading", "_title", "is_explicit", "method", "name", "ranks", "size", "timeout")

    def __init__(self, ranks: ActorRanks, name: str, method: Any, is_explicit: bool = False, timeout: float | None = None) -> None:
        self.ranks = ranks
        self.name = name
        self.method = method
        self.is_explicit = is_explicit
        self.timeout = timeout
        # The arguments before those of the caller: the instance, and the port.
        self._leading = 2 if is_explicit else 1
        self._title = f"{ranks.info.name}.{name}"
        targets = ranks.targets()
        self.size = len(targets)
        extent = ranks.addressed_extent()
        self._caller = Caller(targets, name, extent, is_explicit, view_of(ranks.shape) if extent else None, timeout)

    @property
    def title(self) -> str:
        return f"{self._title}()"

    def check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """`TypeError` for arguments that do not fit the method."""
        check_arguments(self.method, self._leading, args, kwargs, self._title)

    def begin(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], mode: int, rank: int | None = None
    ) -> PendingCall | BaseException | None:
        """Sends the call to all actors, or to one rank, after the checks. Returns the error of a call that is refused or not delivered."""
        check_arguments(self.method, self._leading, args, kwargs, self._title)
        info = self.ranks.info
        if info.failed or info.stopped is not None:
            failure = self.ranks.failure()
            if failure is not None:
                return self._supervision_error(failure)
        if root_fault.fatal_failure is not None:  # the client has ended
            return self._supervision_error(root_fault.fatal_failure)
        try:
            return self._caller.send(args, kwargs, mode, rank)
        except (RuntimeError, TypeError) as e:
            return self._sent_again(e, args, kwargs, mode, rank)

    def call(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        decode: Callable[[PendingCall], Any],
        rank: int | None = None,
        mode: int = FIRST_ERROR,
    ) -> Future[Any]:
        """The future of a call: of all actors, or of one rank."""
        cell = self.begin(args, kwargs, mode, rank)
        return self.failed(cell) if isinstance(cell, BaseException) else new_future(cell, decode, 0, None, PENDING, self, rank)

    def failed(self, error: BaseException) -> Future[Any]:
        """The future of a call that `begin` has refused."""
        return unseen_failure(error, lambda: self.seen(error))

    def seen(self, error: BaseException) -> None:
        """Marks the failure of a refusal as seen: the script gets the error."""
        failure: MeshFailure | None = getattr(error, "failure", None)
        if failure is not None and failure.reason.kind != "stopped":
            root_fault.failure_seen(self.ranks.info.uid, failure)

    # ---- errors before the send

    def _supervision_error(self, failure: MeshFailure) -> BaseException:
        from monarch._core.errors.errors import SpawnError, SupervisionError

        if failure.reason.kind == "stopped":
            from monarch._core._native import block_if_exiting

            block_if_exiting()
        info = self.ranks.info
        if failure.reason.kind in ("host_lost", "signal"):
            from monarch._core.call.lost_host import why_lost

            if (error := why_lost(info, failure)) is not None:
                error.__cause__ = SupervisionError(failure.report(), self.title, failure=failure)
                return error
        if info.unspawned and failure.crashed_ranks and failure.crashed_ranks[0] in info.unspawned:
            from monarch._core.call.answer import spawn_error

            return spawn_error(info, failure.crashed_ranks[0], self.title)
        kind = SpawnError if failure.reason.kind == "not_started" else SupervisionError
        return kind(failure.report(), self.title, failure=failure)

    def _sent_again(
        self, exc: RuntimeError | TypeError, args: tuple[Any, ...], kwargs: dict[str, Any], mode: int, rank: int | None
    ) -> PendingCall | BaseException | None:
        """Sends again if an argument needs that; else gives the reason why there is no answer. `exc` is the first error."""
        if isinstance(exc, RuntimeError):
            return self._undelivered(exc, rank)
        try:
            cell, is_sent = sent_again(exc, self.ranks, self._caller, self.title, args, kwargs, mode, rank)
        except RuntimeError as e:
            return self._undelivered(e, rank)
        is_sent()
        return cell

    def _undelivered(self, exc: RuntimeError, rank: int | None) -> BaseException:
        """The error of a message that none of its receivers got; the receivers are unharmed. Other exceptions are raised again."""
        from monarch._core.call.current_actor import current_local_actor, display_of
        from monarch._core.errors.errors import DeliveryError
        from monarch._core.errors.text import undeliverable

        if type(exc) is not DeliveryError:
            raise exc
        info, ranks = self.ranks.info, self.ranks.base_ranks()
        only = ranks[rank] if rank is not None else ranks[0] if len(ranks) == 1 else None
        dest = f"{info.name} ({len(ranks)} ranks)" if only is None else info.display(only)
        sender = display_of(current_process(), current_local_actor())
        return DeliveryError(undeliverable(self.title, sender, dest, exc.message), hint=exc.hint)

    # ---- answers

    def unanswered(self, cell: PendingCall, rank: int | None) -> str:
        """The end of the text of a `TimeoutError`: the endpoint, and the ranks of the spawn that have not answered; empty if all have.

        `rank` is the position of the called actor if it is one of several.
        """
        base, late = self.ranks.base_ranks(), self._late_ranks(cell, rank)
        if not late:
            return ""
        shown = ", ".join(map(str, late[:_SHOWN])) + (", ..." if len(late) > _SHOWN else "")
        name = self.ranks.info.name
        actors = f"{len(late)} of {len(base)} actors of {name}" if rank is None and len(base) > 1 else f"an actor of {name}"
        return f": {self.title} has no answer from {actors}: rank{'s' if len(late) > 1 else ''} {shown}"

    def late(self, cell: PendingCall, rank: int | None) -> LateCall:
        """The call, with the actors that have not answered. `rank` is that of `unanswered`."""
        info, late = self.ranks.info, self._late_ranks(cell, rank)
        return LateCall(self.name, info.name, info.mailbox, len(self.ranks.base_ranks()), [(one, info.procs[one]) for one in late])

    def _late_ranks(self, cell: PendingCall, rank: int | None) -> list[int]:
        """The ranks of the spawn that have not answered."""
        base, positions = self.ranks.base_ranks(), current_process().native.unanswered(cell.slot)
        return [base[i] for i in positions] if rank is None else [base[rank] for _ in positions[:1]]

    def one_result(self, cell: PendingCall, rank: int = 0) -> Any:
        found = cell.value()
        if found is not None:
            return found[0]
        result = cell.result(0) or cell.error()
        assert result is not None
        raise self.error(cell, result, rank)

    def mesh_result(self, cell: PendingCall) -> ValueMesh[Any]:
        from monarch._core.call.value_mesh import Parts, ValueMesh

        error = cell.error()
        if error is not None:
            raise self.error(cell, error, error.rank)
        return ValueMesh(self.ranks.dense_shape(), Parts(cell.results(), _load))

    def arrival_result(self, index: int) -> Callable[[PendingCall], Any]:
        def decode(cell: PendingCall) -> Any:
            result = cell.arrival(index) or cell.error()
            assert result is not None
            if result.status == OK:
                return result.load()
            raise self.error(cell, result, result.rank)

        return decode

    def expired(self, cell: PendingCall, rank: int = 0) -> BaseException:
        """The error of a call whose deadline has passed. `rank`: that of a call to one of several ranks."""
        from monarch._core.call.expired import expired

        base, count = self.ranks.base_ranks(), len(cell.results())
        shape = self.ranks.dense_shape()
        if count != len(base):
            base, shape = base[rank : rank + 1], Shape((), Slice.new_row_major(()))
        error = expired(cell, self.title, self.ranks.info, shape, base)
        assert error is not None
        return error

    def error(self, cell: PendingCall, result: Result, rank: int) -> BaseException:
        """The exception for an answer. `rank` is the position of the answer in the called mesh."""
        from monarch._core.call.answer import endpoint_error, proc_ended_failure, received_failure

        info = self.ranks.info
        if result.status == DEADLINE:
            return self.expired(cell, rank)
        if result.status == ERROR:
            return endpoint_error(result, info.name, self.name)
        if result.status == CLOSED:
            return EOFError(f"Port closed: {self.title} ended without an answer")
        if result.status == UNDELIVERED:
            from monarch._core.errors.errors import DeliveryError

            return self._undelivered(DeliveryError(result.raw().decode()), rank)
        # The failure must be with its owner before a call of the owner shows it.
        current_process().native.settle()
        base, results = self.ranks.base_ranks(), cell.results()
        decode = proc_ended_failure(info, base[rank], result.raw()) if result.status == PROC_ENDED else None
        failure = decode or received_failure(result.raw(), info, base[rank])
        info.failed.setdefault(base[rank], failure)
        whole = len(results) == len(base)
        unanswered = [base[i] for i, r in enumerate(results) if r is None or r.status != OK] if whole else []
        mark_retrieved(info.uid, cell, failure, unanswered)
        return self._supervision_error(failure)


def _load(result: Any) -> Any:
    try:
        return result.load()
    finally:
        # The traceback of an error has this frame, and is kept.
        del result


def mark_retrieved(mesh: int, cell: PendingCall, failure: MeshFailure, unanswered: list[int]) -> None:
    # This comes first: once the cell counts as retrieved, unseen failures are acted upon. It also covers the ranks without an answer:
    # several ranks may die for one cause, and the call raises once.
    root_fault.failure_seen(mesh, failure, unanswered)
    cell.set_retrieved()


def sent_again(
    exc: TypeError,
    to: ActorRanks,
    caller: Caller,
    title: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    mode: int,
    rank: int | None = None,
) -> tuple[PendingCall | None, Callable[[], None]]:
    """Sends to these actors, or to one rank of them, a message that was refused with `exc`; raises `exc` if it cannot be sent at all.

    The caller runs the second result when the message is sent: it runs the functions that wait for the send.
    """
    from functools import partial

    from monarch._core.pickle.state import NeedsRanks, NeedsReceivers

    if type(exc) is NeedsRanks:
        from monarch._core.call.rank_values import send_rank_values

        send = partial(send_rank_values, to, caller, title, args, kwargs, mode, rank)
        try:
            return send(), lambda: None
        except NeedsReceivers:
            return send_to_receivers(to, send, rank)
    if isinstance(exc, NeedsReceivers):
        return send_to_receivers(to, partial(caller.send, args, kwargs, mode, rank), rank)
    raise exc


def send_to_receivers(
    to: ActorRanks, send: Callable[[], PendingCall | None], rank: int | None
) -> tuple[PendingCall | None, Callable[[], None]]:
    """Sends to these actors, or to one rank of them, a message for known receivers only, such as the shards of a mesh tensor.

    The pickler first refuses such a message. `send` pickles it again, with the list of receivers.
    """
    from functools import partial

    from monarch._core.pickle.state import Receivers, state

    procs = to.procs()
    found = Receivers(tuple(procs if rank is None else [procs[rank]]))
    before, state.receivers = state.receivers, found
    sent = False
    try:
        cell = send()
        sent = True
    finally:
        state.receivers = before
        if not sent:
            for undo in found.not_sent:
                undo()

    def is_sent() -> None:
        for run in found.sent:
            run(partial(_then, to, rank))

    return cell, is_sent


def _then(to: ActorRanks, rank: int | None, function: Callable[..., Any], *given: Any) -> Future[Any]:
    """Makes the actors run a function after the messages that were sent so far."""
    after = CallTarget(to, "_call_function", None)
    return after.call((function, given), {}, after.mesh_result if rank is None else lambda cell: after.one_result(cell, rank), rank)
