"""The store by which the ranks of a process group find each other: a dictionary in the process of its first rank, without a port.

The others reach it by requests of the job's own links.
"""

from __future__ import annotations

import struct
import threading
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from monarch.extension import ask, member

if TYPE_CHECKING:
    from monarch.extension import ProcId, Request

REQUEST = "monarch.tensor.store"

SET, GET, ADD, CHECK, DELETE, FAIL, ENTER = range(7)
# Seconds, longer than the creation of any group.
SECONDS = 300.0
# The number of kept failed groups: all ranks have learned of older ones.
_FAILED = 256


# The key of the reason why a rank has left.
_REASON = "reason"
_LEFT_BEHIND = "another rank has failed in an earlier collective of this process group, and has gone on to a later one"
# Seconds for an answer with the reason why a rank has left.
_REASON_SECONDS = 1.0


class Shelf:
    """The entries of this process. A `GET` of one that is not there is answered when it is set."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._set = threading.Condition(self._lock)
        self._entries: dict[str, bytes] = {}
        self._waiting: dict[str, list[Any]] = {}
        # By the prefix of its keys: the reason why a group cannot be made.
        self._failed: dict[str, str] = {}
        # The collective for which the last group was made, by ranks and stream.
        self._latest: dict[str, int] = {}

    def answer(self, request: Request) -> bytes | None:
        kind, key, value = _unpack(bytes(request.body))
        if kind == GET:
            with self._lock:
                if key not in self._entries:
                    request.defer()
                    why = self._reason(key)
                    if why is None:
                        self._waiting.setdefault(key, []).append(request)
                    else:
                        request.fail(why.encode())
                    return None
                return self._entries[key]
        return self.apply(kind, key, value)

    def wait(self, key: str, seconds: float) -> bytes:
        """The value of an entry, when it is set. `TimeoutError` after so many seconds."""
        with self._lock:
            if not self._set.wait_for(lambda: key in self._entries or self._reason(key) is not None, seconds):
                raise TimeoutError(f"{key!r} was not set in the store of a process group within {seconds} s")
            why = self._reason(key)
            if key not in self._entries and why is not None:
                raise RuntimeError(why)
            return self._entries[key]

    def _reason(self, key: str) -> str | None:
        return next((why for prefix, why in self._failed.items() if key.startswith(prefix)), None)

    def apply(self, kind: int, key: str, value: bytes) -> bytes:
        """Everything but `GET`."""
        with self._lock:
            if kind == SET:
                self._entries[key] = value
            elif kind == ADD:
                self._entries[key] = str(int(self._entries.get(key, b"0")) + int(value)).encode()
            elif kind == CHECK:
                return b"1" if key in self._entries else b"0"
            elif kind == FAIL:
                self._fail(key, value)
                return b"1"
            elif kind == ENTER:
                return b"1" if self._enter(key, int(value)) else b"0"
            elif kind == DELETE:
                gone = [k for k in self._entries if k.startswith(key)]
                for k in gone:
                    del self._entries[k]
                return b"1" if gone else b"0"
            else:
                raise ValueError(f"the store has no operation {kind}")
            answer = self._entries[key]
            waiting = self._waiting.pop(key, [])
            self._set.notify_all()
        for request in waiting:
            request.answer(answer)
        return answer

    def _fail(self, prefix: str, why: bytes) -> None:
        if len(self._failed) >= _FAILED:
            self._failed.clear()
        self._failed[prefix] = why.decode()
        self._set.notify_all()
        gone = [(k, self._waiting.pop(k)) for k in list(self._waiting) if k.startswith(prefix)]
        for request in [r for _, requests in gone for r in requests]:
            request.fail(why)

    def _enter(self, key: str, moment: int) -> bool:
        """A rank goes on to a collective: a group for an earlier one will not have this rank. False where another rank is further."""
        latest = self._latest.get(key, moment)
        if moment < latest:
            return False
        if moment > latest:
            self._fail(f"{key}/{latest}/", _LEFT_BEHIND.encode())
        self._latest[key] = moment
        return True

    def forget(self, prefix: str) -> None:
        """Groups of these names are made no more."""
        with self._lock:
            for key in [k for k in self._latest if k.startswith(prefix)]:
                del self._latest[key]


@cache
def shelf() -> Shelf:
    """That of this process."""
    return Shelf()


def answer(request: Request) -> bytes | None:
    """The handler of requests to the store."""
    return shelf().answer(request)


def _pack(kind: int, key: str, value: bytes = b"") -> bytes:
    name = key.encode()
    return struct.pack("<BI", kind, len(name)) + name + value


def _unpack(body: bytes) -> tuple[int, str, bytes]:
    if len(body) < 5:
        raise ValueError(f"a request to the store of {len(body)} bytes is cut off")
    kind, length = struct.unpack_from("<BI", body)
    if len(body) < 5 + length:
        raise ValueError(f"a request to the store of {len(body)} bytes is cut off")
    return kind, body[5 : 5 + length].decode(), body[5 + length :]


class RequestStore(dist.Store):
    """The store in another process, or in this one, as torch's process groups use it. `prefix` keeps groups apart."""

    def __init__(self, owner: ProcId, prefix: str) -> None:
        super().__init__()
        self._shelf = shelf() if owner == member().proc else None
        self._owner = owner
        self._prefix = prefix
        self._seconds = SECONDS

    def _ask(self, kind: int, key: str, value: bytes = b"") -> bytes:
        return self._ask_for(kind, self._prefix + key, value)

    def _ask_for(self, kind: int, name: str, value: bytes) -> bytes:
        if self._shelf is not None:
            return self._shelf.wait(name, self._seconds) if kind == GET else self._shelf.apply(kind, name, value)
        return bytes(ask(self._owner, REQUEST, _pack(kind, name, value)).get(self._seconds))

    def set(self, key: str, value: bytes | str) -> None:
        self._ask(SET, key, value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        return self._ask(GET, key)

    def add(self, key: str, amount: int) -> int:
        return int(self._ask(ADD, key, str(amount).encode()))

    def check(self, keys: list[str]) -> bool:
        return all(self._ask(CHECK, key) == b"1" for key in keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        for key in keys:
            self._ask(GET, key)

    def delete_key(self, key: str) -> bool:
        return self._ask(DELETE, key) == b"1"

    def set_timeout(self, timeout: timedelta) -> None:
        self._seconds = timeout.total_seconds()

    def num_keys(self) -> int:
        raise NotImplementedError("the store of a mesh does not count its keys")

    def enter(self, moment: int) -> None:
        """This rank goes on to a collective. `RuntimeError` where another rank has gone on to a later one."""
        if self._ask_for(ENTER, self._prefix.rpartition("/")[0].rpartition("/")[0], str(moment).encode()) != b"1":
            raise RuntimeError(_LEFT_BEHIND)

    def leave(self, why: str) -> None:
        """Before this rank ends its connections: what the others are to raise."""
        self.set(_REASON, why)

    def reason(self) -> str | None:
        """Why a rank has left; None if none has, or if the process of the store does not answer within a second."""
        before, self._seconds = self._seconds, _REASON_SECONDS
        try:
            return self.get(_REASON).decode() if self.check([_REASON]) else None
        except Exception:
            return None
        finally:
            self._seconds = before

    def fail(self, why: str) -> None:
        """Has every rank that waits for a key under the prefix, now or later, fail with this text."""
        self._ask(FAIL, "", why.encode())

    def clear(self) -> None:
        """Removes what was set under the prefix."""
        self._ask(DELETE, "")
