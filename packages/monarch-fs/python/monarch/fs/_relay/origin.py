"""The client's end of the relay: answers requests for the chunks of the trees that it serves, from their source."""

from __future__ import annotations

import errno
import secrets
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from monarch.extension import Request, serve
from monarch.fs._relay.chunk_protocol import ANSWER_BYTES, ChunkAnswer, ChunkRequest, decode_request, encode_answer
from monarch.fs._relay.failure import FetchFailure
from monarch.fs._relay.handler import handled
from monarch.fs._relay.offer import Offers
from monarch.fs._relay.peer import PREFIX, Peer, peer_here
from monarch.fs._relay.workers import Workers
from monarch.fs._tree.node import WHOLE_BYTES


class ReadFailed(Protocol):
    """Why the source has not given a chunk: `ReadFailure` of the index."""

    @property
    def paths(self) -> list[str]: ...
    @property
    def reason(self) -> str: ...
    @property
    def stale(self) -> bool: ...


Reader: TypeAlias = Callable[[Sequence[bytes]], Sequence[bytes | ReadFailed]]

# Chunks that are read in one step.
_MOST_READ = 64
# The most offered contents: as many as a host requests at the same time.
_MOST_OFFERED = 64


class Origin:
    """Serves trees of this process. Only chunks of their scans can be asked for, never a path."""

    def __init__(self) -> None:
        self._name = f"{PREFIX}{secrets.token_hex(16)}"
        self._lock = threading.Lock()
        self._readers: dict[str, Reader] = {}
        self._sent: dict[str, int] = {}
        self._workers = Workers(2, "monarch-fs-origin")
        self._offers = Offers(_MOST_OFFERED)
        handler = weakref.WeakMethod(self._asked)
        serve(self._name, lambda request: handled(handler, request))

    def peer(self) -> Peer:
        """Where hosts ask: the last of their upstreams."""
        return peer_here(self._name)

    def serve(self, tree: str, read: Reader) -> None:
        """Answers for a tree from now on; its name is a secret that only its hosts have. `read` is called on threads of this object."""
        with self._lock:
            self._readers[tree] = read
            self._sent.setdefault(tree, 0)

    def withdraw(self, tree: str) -> None:
        """Answers no more for this tree: what its hosts lack fails there with "source left"."""
        with self._lock:
            self._readers.pop(tree, None)

    def bytes_sent(self, tree: str) -> int:
        """Bytes of contents sent so far, before compression; 0 for a tree that was never served."""
        with self._lock:
            return self._sent.get(tree, 0)

    def close(self) -> None:
        with self._lock:
            self._readers.clear()
        self._workers.close()
        self._offers.close()

    def _asked(self, request: Request) -> None:
        try:
            asked = decode_request(request.body)
        except ValueError as e:
            request.fail(str(e).encode())
            return
        self._workers.run(lambda: self._answer(request, asked), urgent=asked.urgent)

    def _answer(self, request: Request, asked: ChunkRequest) -> None:
        with self._lock:
            read = self._readers.get(asked.tree)
        contents: dict[bytes, bytes | memoryview] = {}
        failures: dict[bytes, FetchFailure] = {}
        offered: dict[bytes, tuple[int, bytes]] = {}
        if read is None:
            failures = dict.fromkeys(asked.ids, FetchFailure(errno.EIO, "source left", final=True))
        size = at = 0
        # Sizes are unknown at first: one chunk is read, and then as many as fit by their mean size.
        count = 1
        while read is not None and at < len(asked.ids) and size < ANSWER_BYTES:
            ids = asked.ids[at : at + count]
            at += len(ids)
            try:
                found: Sequence[bytes | ReadFailed] = read(ids)
            except Exception as e:
                failures |= dict.fromkeys(ids, FetchFailure(errno.EIO, f"the source cannot be read: {e}", final=True))
                continue
            for id, content in zip(ids, found, strict=True):
                if not isinstance(content, bytes):
                    failures[id] = _failure(content)
                elif asked.offer and len(content) > WHOLE_BYTES and (handle := self._offers.offer(id, content)) is not None:
                    offered[id] = len(content), handle
                elif not size or size + len(content) <= ANSWER_BYTES:  # the rest is requested again
                    contents[id] = content
                    size += len(content)
            count = max(int((ANSWER_BYTES - size) / max(size / max(len(contents), 1), 1)), 1)
            count = min(count, 4 * at, _MOST_READ)
        with self._lock:
            self._sent[asked.tree] = self._sent.get(asked.tree, 0) + size + sum(length for length, _ in offered.values())
        request.answer(encode_answer(ChunkAnswer(contents, failures, offered=offered), compress=asked.compress))


def _failure(found: ReadFailed) -> FetchFailure:
    # Without the paths: the host has the tree, and names the file for which it needs the chunk.
    return FetchFailure(errno.EIO, found.reason, found.stale, final=True)
