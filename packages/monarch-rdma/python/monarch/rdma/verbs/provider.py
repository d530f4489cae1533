"""What is asked of a library that drives RDMA devices. pyverbs is one; tests have another that fails at will; a native one fits as well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monarch.rdma.verbs.connect_record import QueueRecord
    from monarch.rdma.verbs.devices import Port

# Statuses of completions; the numbers are those of `enum ibv_wc_status`.
SUCCESS, FLUSHED = 0, 5


class OpenDevice(Protocol):
    """A device that a library has opened, as its queue pairs use it; of types of the library."""

    port: Port
    context: Any
    attributes: Any
    port_attributes: Any
    domain: Any
    completions: Any

    def closed(self, queue: Any) -> None: ...


class WorkRequest(NamedTuple):
    """One contiguous range to read or write. Its number comes back with its completion, which is promised only where it is `signaled`."""

    number: int
    write: bool
    address: int
    nbytes: int
    key: int
    remote_address: int
    remote_key: int
    signaled: bool


class Completion(NamedTuple):
    number: int
    status: int
    vendor: int = 0


class Region(Protocol):
    """Registered memory: `key` is for work requests of this process, `remote_key` for those of others."""

    key: int
    remote_key: int

    def close(self) -> None:
        """Devices cannot reach the memory any more when this returns."""
        ...


class Queue(Protocol):
    """A queue pair. It is good for either end: work requests go in at one, the other has to be connected only."""

    record: QueueRecord

    def connect(self, remote: QueueRecord) -> None:
        """Makes it ready to send and to be reached; `OSError` where the device refuses."""
        ...

    def post(self, requests: Sequence[WorkRequest]) -> bool:
        """Whether the device has taken them, all of them; if not, the queue is good for nothing but to be closed."""
        ...

    def close(self) -> None:
        """Requests that are under way never complete; no byte is moved when this returns. On an unordered rail nothing may be under way."""
        ...


class Rail(Protocol):
    """An open port of a device.

    Completions of a queue come in the order of its requests, and the first that is none of success is the last but for flushed ones. Not so
    if the rail is `unordered`: there every request is signaled, and completes by itself, with an error if its peer is gone.
    """

    port: Port
    unordered: bool

    def register(self, address: int, nbytes: int, *, remote_read: bool = False, remote_write: bool = False) -> Region:
        """Pins memory; `OSError` where the device or the limit of locked memory refuses it."""
        ...

    def register_dma_buffer(
        self, descriptor: int, offset: int, nbytes: int, *, remote_read: bool = False, remote_write: bool = False
    ) -> Region:
        """The same for memory of another device, by a descriptor of its driver; addresses in requests count from `offset`."""
        ...

    def queue(self, depth: int) -> Queue:
        """A queue pair for `depth` requests at a time; 0: for the end that is read and written only."""
        ...

    def poll(self, most: int) -> Sequence[Completion]:
        """Completions that are there, at most so many; does not wait."""
        ...

    def fileno(self) -> int:
        """Becomes readable with the next completion after `arm`."""
        ...

    def arm(self) -> None:
        """Asks for an event; completions that came before may make none, so `poll` has to follow."""
        ...

    def acknowledge(self) -> None:
        """Takes the event; to be called only where `fileno` is readable."""
        ...

    def close(self) -> None: ...
