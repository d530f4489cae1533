"""Handles outside of messages: `handle_bytes` and `handle_from_bytes`, for a file, an environment variable or another program.

The bytes are a ticket: the identity of the client of the job, a number, the end of its validity and a keyed digest. The handle itself stays
with the client, in a table. A process that has the bytes sends the ticket to the client, over the client's control socket or inside of the
job, and receives the pickled handle.

What always holds: nothing of the bytes is unpickled; the client answers only a ticket with a digest of its own key, and none after its end,
by the client's own clock; a ticket of a client that has ended is an error, not a wait.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, urlsafe_b64encode
from itertools import count
from struct import Struct
from zlib import crc32

from monarch._core.call.actor_mesh import ActorMesh
from monarch._core.call.port import Port
from monarch._core.call.received_mesh import reach
from monarch._core.errors.extension import HandleError, RequestError
from monarch._core.errors.text import fill
from monarch._core.extension.arguments import check_seconds
from monarch._core.extension.request import ask
from monarch._core.hosts.host_mesh import HostMesh, ProcMesh
from monarch._core.process.current import current_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    from monarch._core.extension.request import Request
    from monarch._core.process.process import LocalProcess

    H = TypeVar("H", ActorMesh, ProcMesh, HostMesh, Port[Any])

REQUEST = "monarch.handle"
# The start of the bytes; its last digit is the version of the format.
_MAGIC = b"monarch1."
# The client and its host, the number of the ticket, the end of its validity in milliseconds of the client's clock; then the digest.
_FIELDS = Struct("<QQQQ")
_DIGEST = 16
_CHECK = Struct("<I")
_SIZE = _FIELDS.size + _DIGEST + _CHECK.size
# Seconds for which a ticket is valid: a job that passes handles to its own programs does so at their start.
_VALID = 3600.0
# The answers of a client.
_KNOWN, _UNKNOWN, _EXPIRED = b"k", b"u", b"e"


class _Tickets:
    """The tickets of this client: its key, and the pickled handle of each ticket until its end."""

    __slots__ = ("_handles", "_key", "_numbers")

    def __init__(self) -> None:
        from secrets import token_bytes

        self._key = token_bytes(32)
        self._handles: dict[int, tuple[int, bytes]] = {}
        self._numbers = count(1)

    def issue(self, process: LocalProcess, handle: bytes, valid: int) -> bytes:
        """A ticket of this handle, valid for as many milliseconds."""
        now = _now(process)
        for number, (until, _) in list(self._handles.items()):
            if until <= now:
                self._handles.pop(number, None)
        number = next(self._numbers)
        self._handles[number] = now + valid, handle
        fields = _FIELDS.pack(process.uid, process.agent_uid, number, now + valid)
        return fields + self._digest(fields)

    def redeem(self, process: LocalProcess, ticket: bytes) -> bytes:
        """The answer to a process that has the ticket."""
        from hmac import compare_digest

        fields, digest = ticket[: _FIELDS.size], ticket[_FIELDS.size :]
        if len(fields) != _FIELDS.size or not compare_digest(digest, self._digest(fields)):
            return _UNKNOWN
        _, _, number, until = _FIELDS.unpack(fields)
        # Another thread may have removed a handle whose end has just come.
        found = self._handles.get(number) if until > _now(process) else None
        return _EXPIRED if found is None else _KNOWN + found[1]

    def _digest(self, fields: bytes) -> bytes:
        from hashlib import blake2b

        return blake2b(fields, key=self._key, digest_size=_DIGEST).digest()


_tickets: dict[LocalProcess, _Tickets] = {}


def _tickets_of(process: LocalProcess) -> _Tickets:
    """The tickets of this process, which is a client."""
    return _tickets.setdefault(process, _Tickets())


def _now(process: LocalProcess) -> int:
    return int(process.execution.now() * 1000)


def handle_bytes(handle: H, *, expires_in: float = _VALID) -> bytes:
    """A handle as printable bytes, for another program of the same user on the client's machine, or for any process of the job.

    The bytes fit into an environment variable, a file or an argument. They are a capability: each program that has them gets the handle, so
    they are kept as a password is. The client of the job answers for them, until their end and while it runs.

    Args:
        handle: a mesh of actors, procs or hosts, or a port.
        expires_in: seconds, by the client's clock, until the bytes are refused. A handle that was made of them earlier goes on.

    Returns:
        About a hundred ASCII characters, whatever the size of the mesh.

    Raises:
        TypeError: `handle` is none of these.
        ValueError: `expires_in` is not a positive finite number.
        HandleError: the client of the job has ended.

    ```python
    from monarch.actor import Actor, endpoint, handle_bytes, handle_from_bytes, this_host

    class Worker(Actor):
        @endpoint
        def double(self, x: int) -> int:
            return 2 * x

    with this_host().spawn_procs({"gpus": 2}) as procs:
        text = handle_bytes(procs.spawn("workers", Worker), expires_in=60).decode()
        # In another program: os.environ["WORKERS"].encode()
        workers = handle_from_bytes(text.encode())
        assert workers.double.call(21).get().item(gpus=1) == 42
    ```
    """
    if not isinstance(handle, ActorMesh | ProcMesh | HostMesh | Port):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"handle_bytes: expected a mesh or a port, not {type(handle).__name__}")
    check_seconds("expires_in", expires_in, positive=True)
    from pickle import dumps

    process = current_process()
    # Outside of a message: the client opens its control socket.
    pickled, valid = dumps(handle, 5), max(1, int(expires_in * 1000))
    job = process.peers.job
    if job == process.uid:
        ticket = _tickets_of(process).issue(process, pickled, valid)
    else:
        ticket = _answer(job, b"+" + valid.to_bytes(8, "little") + pickled)
    return _MAGIC + urlsafe_b64encode(ticket + _CHECK.pack(crc32(ticket)))


def handle_from_bytes(data: bytes | str) -> Any:
    """The handle of these bytes, as `handle_bytes` has made them in this or in another program. The call blocks for one round trip.

    Args:
        data: the bytes, or their text.

    Returns:
        A reference: the owner of the mesh stops it.

    Raises:
        HandleError: `code` is `handle_malformed` for bytes that are no handle or are incomplete, `handle_unknown` for bytes that the client
            has not made, `handle_expired` after the end of their validity, and `handle_client_lost` where the client has ended, or is
            of another user or on another machine.
        TypeError: `data` is neither bytes nor a text.

    ```python
    from monarch.actor import HandleError, handle_bytes, handle_from_bytes, this_host

    data = handle_bytes(this_host())
    assert handle_from_bytes(data) == this_host()
    try:
        handle_from_bytes(data[:-4])
    except HandleError as error:
        assert error.code == "handle_malformed"
    ```
    """
    ticket = _parsed(data)
    client, host, _, _ = _FIELDS.unpack_from(ticket)
    process = current_process()
    if client == process.uid:
        answer = _tickets_of(process).redeem(process, ticket)
    else:
        # The client is its own job; inside of the job it is known.
        reach(process, client, [(client, host)])
        answer = _answer(client, b"-" + ticket)
    if answer[:1] == _UNKNOWN:
        raise HandleError(fill("handle_unknown"), code="handle_unknown")
    if answer[:1] == _EXPIRED:
        raise HandleError(fill("handle_expired"), code="handle_expired")
    from monarch._core.pickle.pickling import loads

    return loads(answer[1:])


def _parsed(data: bytes | str) -> bytes:
    if not isinstance(data, bytes | bytearray | memoryview | str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"handle_from_bytes: expected bytes or a text, not {type(data).__name__}")
    text = data.encode(errors="replace") if isinstance(data, str) else bytes(data)
    if not text.startswith(_MAGIC):
        raise _malformed(f"they do not begin with {_MAGIC.decode()}" if text else "they are empty")
    try:
        raw = b64decode(text[len(_MAGIC) :].strip(), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise _malformed(f"{len(text)} bytes are not as base64 makes them") from None
    if len(raw) != _SIZE:
        raise _malformed(f"{len(raw)} bytes instead of {_SIZE}")
    ticket = raw[: -_CHECK.size]
    if _CHECK.pack(crc32(ticket)) != raw[-_CHECK.size :]:
        raise _malformed("their check sum does not fit")
    return ticket


def _malformed(why: str) -> HandleError:
    return HandleError(fill("handle_malformed", why=why), code="handle_malformed")


def _answer(client: int, body: bytes) -> bytes:
    """The answer of a client, which may have ended."""
    try:
        future = ask(client, REQUEST, body)
        # Without the warning of `get`: the wait is one round trip, also in an event loop.
        future.__core__.wait(None)
        return future.get()
    except RequestError as error:
        raise HandleError(fill("handle_client_lost", why=str(error).partition("\n")[0]), code="handle_client_lost") from None


def handle(request: Request) -> bytes:
    """Answers a process of the job that makes bytes (`+`), and each process that has them (`-`)."""
    process = current_process()
    kind, body = request.body[:1], request.body[1:]
    if kind == b"+" and len(body) > 8:
        return _tickets_of(process).issue(process, body[8:], int.from_bytes(body[:8], "little"))
    return _tickets_of(process).redeem(process, body)
