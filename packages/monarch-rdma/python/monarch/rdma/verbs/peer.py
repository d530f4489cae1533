"""Another process as one whose memory this one reaches by devices: the connection to it, and what is known of its buffers."""

from __future__ import annotations

import threading
from collections import OrderedDict
from time import monotonic
from typing import TYPE_CHECKING

from monarch import extension
from monarch.extension.bulk import BulkFailed
from monarch.rdma._process.process import DEVICES
from monarch.rdma.verbs import question
from monarch.rdma.verbs.connect_record import RegionRecord
from monarch.rdma.verbs.connection import Connection
from monarch.rdma.verbs.service import in_thread
from monarch.rdma.verbs.slices import LONGEST_REST, REST

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monarch.rdma.verbs.connect_record import QueueRecord
    from monarch.rdma.verbs.rails import Rails

# Seconds between two checks whether an answer is still wanted.
_LOOK = 0.1
# The most keys of buffers that are kept.
_KEPT = 4096


class Late(Exception):
    """Time is up."""


class Ended(Exception):
    """The process has."""


class Peer:
    """`rails` opens those of this process; `largest` is the upper bound of a slice, bytes."""

    def __init__(self, uid: int, rails: Callable[[], Rails], largest: int) -> None:
        self.uid = uid
        self._rails = rails
        self._largest = largest
        self._lock = threading.Lock()
        self._connected = threading.Condition(self._lock)
        self._connecting = False
        self._regions: OrderedDict[bytes, RegionRecord] = OrderedDict()
        # Buffers that had small transfers.
        self._used: dict[bytes, None] = {}
        self._name = "verbs"
        self._ended = False
        self._rests_until = 0.0
        self._rest = REST
        self.connection: Connection | None = None
        self.trouble = ""

    @property
    def rests(self) -> bool:
        """It could not be reached, and is not tried for a while."""
        return monotonic() < self._rests_until

    def region(self, id: bytes) -> RegionRecord | None:
        """Of a buffer, if it is known."""
        with self._lock:
            found = self._regions.get(id)
            if found is not None:
                self._regions.move_to_end(id)
            return found

    def is_first_use(self, ids: Sequence[bytes]) -> bool:
        """None of these buffers is known, nor has been asked for here before."""
        with self._lock:
            first = all(id not in self._regions and id not in self._used for id in ids)
            for id in ids:
                self._used[id] = None
            while len(self._used) > _KEPT:
                self._used.pop(next(iter(self._used)))
        return first

    def forget(self, id: bytes) -> None:
        """Forgets a buffer whose registration has changed."""
        with self._lock:
            self._regions.pop(id, None)

    def is_open(self, ids: Sequence[bytes]) -> bool:
        """Nothing has to be asked for these."""
        return self.has_queue and all(self.region(id) is not None for id in ids)

    @property
    def has_queue(self) -> bool:
        connection = self.connection
        return connection is not None and any(connection.ready)

    def repair(self, until: float) -> bool:
        """Queues that have failed are replaced by the next transfer, or by this; whether there is one."""
        connection = self.connection
        return connection is not None and (any(connection.ready) or connection.repair(max(0.0, until - monotonic())))

    @property
    def name(self) -> str:
        """Of the path: the nearest rail that there is a queue on, or was."""
        connection = self.connection
        if connection is not None:
            names = [name for name, ready in zip(connection.names, connection.ready, strict=True) if ready]
            self._name = f"verbs:{names[0]}" if names else self._name
        return self._name

    def open(self, buffers: Sequence[question.Wanted], until: float) -> None:
        """Connects, and asks for the keys of buffers. It waits.

        `OSError` where devices do not reach it, or cannot know that memory; `BulkFailed` for a buffer that has ended; `Late`; `Ended`.
        """
        self._connect(until)
        missing = [buffer for buffer in buffers if self.region(buffer.id) is None]
        if missing:
            self._take(missing, question.keys(self._ask(question.pack_buffers(missing), until)))

    def close(self) -> None:
        """The process has ended: so does what is under way."""
        with self._lock:
            self._ended = True
            connection = self.connection
            self._connected.notify_all()
        if connection is not None:
            connection.close()

    def _connect(self, until: float) -> None:
        """Waits for a thread that connects, and may be there for longer: its bound is that of the dial."""
        with self._lock:
            if self.connection is None and not self._connecting and not self._ended:
                self._connecting = True
                in_thread(self._make_connection, "rdma connecting")
            if not self._connected.wait_for(lambda: self._ended or not self._connecting, max(0.0, until - monotonic())):
                raise Late
            if self._ended:
                raise Ended
            if self.connection is None:
                raise OSError(self.trouble)

    def _make_connection(self) -> None:
        trouble, made = "", None
        try:
            made = Connection(self._rails().ways, self._dial, largest=self._largest)
            made.open()
        except Exception as e:  # also those of a library: the waiting code must receive it
            trouble = str(e) or type(e).__name__
            if made is not None:
                made.close()
            made = None
        ended = extension.end_of(self.uid) is not None
        with self._lock:
            self._connecting, self.connection, self.trouble = False, made, trouble
            if made is not None:
                self._rest = REST
            elif not ended:
                self._rests_until, self._rest = monotonic() + self._rest, min(2 * self._rest, LONGEST_REST)
            self._ended = self._ended or ended
            over = self._ended
            self._connected.notify_all()
        if over and made is not None:
            made.close()

    def _dial(self, offers: Sequence[QueueRecord]) -> Sequence[QueueRecord | None]:
        try:
            answers = question.accepted(
                self._ask(question.pack_offers(offers), monotonic() + (extension.seconds("rdma_qp_init_timeout") or 0.0))
            )
        except Late:
            raise OSError("the other process does not answer") from None
        except Ended:
            raise OSError("the other process has ended") from None
        except ValueError as e:
            raise OSError(f"the other process answers nonsense: {e}") from None
        if len(answers) != len(offers):
            raise OSError(f"the other process answers {len(answers)} of {len(offers)} offers")
        return answers

    def _ask(self, body: bytes, until: float) -> bytes:
        answer = extension.ask(self.uid, DEVICES, body)
        while True:
            try:
                return answer.get(timeout=max(0.0, min(_LOOK, until - monotonic())))
            except TimeoutError:
                # At exit no code must wait for a peer that does not answer.
                if self._ended:
                    raise Ended from None
                if monotonic() >= until:
                    raise Late from None
            except extension.RequestError as e:
                if e.code == "request_proc_ended" or extension.end_of(self.uid) is not None:
                    raise Ended from None
                raise OSError(f"the other process uses no devices: {e.body.decode(errors='replace') or e}") from None

    def _take(self, asked: Sequence[question.Wanted], keys: Sequence[RegionRecord | question.Refusal]) -> None:
        if len(keys) != len(asked):
            raise OSError(f"the other process answers for {len(keys)} of {len(asked)} buffers")
        unknown: list[str] = []
        for (id, _, _), key in zip(asked, keys, strict=True):
            if isinstance(key, RegionRecord):
                with self._lock:
                    self._regions[id] = key
                    while len(self._regions) > max(_KEPT, len(asked)):
                        self._regions.popitem(last=False)
            elif key.kind == question.FAILED:
                raise BulkFailed(key.what)
            else:
                unknown.append(key.what.decode(errors="replace"))
        if unknown:
            raise OSError(f"the owner's devices cannot know the memory: {unknown[0]}")
