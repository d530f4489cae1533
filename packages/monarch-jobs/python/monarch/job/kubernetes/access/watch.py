"""Watches: a list, then its changes, across every kind of gap.

The stream of a watch ends whenever the server likes. While the server still has the last resource version seen, the next one goes on from
there, and nothing is missed. After a 410 (expired), the list is fetched anew and reported as a whole: the reader compares.

Ours: the watch of the official client goes on after a 410 at the expired version, once, and a cut ends it.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Generator, Iterator
from threading import Event
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from monarch.job._machine.commands import time_left
from monarch.job.kubernetes.access.decoding import decode
from monarch.job.kubernetes.access.failures import ApiError, Request, UnreachableError, refused
from monarch.job.kubernetes.access.kinds import parse

if TYPE_CHECKING:
    from monarch.job.kubernetes.access.connection import ApiConnection

Object = dict[str, Any]
LISTED = "LISTED"
# Seconds after which the server ends a watch; bookmarks come about once a minute until then.
_WATCH_SECONDS = 240
_SILENCE_SECONDS = 100.0
_LEAST_PAUSE_S, _MOST_PAUSE_S = 0.1, 5.0
# Seconds for a server that is back and has not loaded its rules yet: it denies permitted requests.
_DENIAL_SECONDS = 20.0
_MOST_LINE = 64 << 20


class Change(NamedTuple):
    """What a watch reports: `type` is ADDED, MODIFIED or DELETED, with `object`; or LISTED, with all objects in `items`.

    LISTED comes first, and again after each gap in which changes may have been missed.
    """

    type: str
    object: Object
    items: list[Object]


class Watched(Protocol):
    """A cluster, as a watch uses it: `access.client.Cluster`."""

    connection: ApiConnection
    namespace: str
    title: str

    def list(self, kind: str, selector: str = "", *, fields: str = "") -> tuple[list[Object], str]: ...


class _Expired(Exception):
    """The server has no changes since this resource version any more."""


def changes(cluster: Watched, kind: str, selector: str, fields: str, timeout: float | None, stop: Event | None = None) -> Iterator[Change]:
    """See `Cluster.watch`. The first list raises what goes wrong; later ones are repeated while the server is away, or refuses for 20 s."""
    end = None if timeout is None else time.monotonic() + timeout
    version, pause, denied_at = "", 0.0, 0.0
    is_first = True
    stop = stop or Event()
    while not (_is_over(end) or stop.is_set()):
        try:
            if not version:
                items, version = cluster.list(kind, selector, fields=fields)
                pause = denied_at = 0.0
                is_first = False
                yield Change(LISTED, {}, items)
            for change, seen in _stream(cluster, kind, selector, fields, version, end):
                version, pause, denied_at = seen, 0.0, 0.0
                if change is not None:
                    yield change
        except _Expired:
            version = ""
        except UnreachableError:
            if is_first:
                raise
        except ApiError:
            denied_at = denied_at or time.monotonic()
            if is_first or time.monotonic() - denied_at > _DENIAL_SECONDS:
                raise
        pause = min(max(pause * 2, _LEAST_PAUSE_S), _MOST_PAUSE_S)
        wait = pause * random.uniform(0.5, 1.0)
        stop.wait(wait if end is None else max(0.0, min(wait, end - time.monotonic())))


def _is_over(end: float | None) -> bool:
    return (end is not None and time.monotonic() >= end) or time_left(1.0) <= 0


def _stream(
    cluster: Watched, kind: str, selector: str, fields: str, version: str, end: float | None
) -> Generator[tuple[Change | None, str]]:
    """Changes, each with the resource version to go on from; ends with the server's stream, or at `end`."""
    known = parse(kind)
    seconds = _WATCH_SECONDS if end is None else max(1, min(_WATCH_SECONDS, int(end - time.monotonic() + 0.999)))
    query = {"watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true", "timeoutSeconds": str(seconds)}
    query |= {key: value for key, value in (("labelSelector", selector), ("fieldSelector", fields)) if value}
    namespace = cluster.namespace if known.is_namespaced else ""
    request = Request("watch", known.resource, "", namespace)
    with cluster.connection.stream("GET", known.path(namespace), query, silence=min(_SILENCE_SECONDS, seconds + 10.0)) as incoming:
        answer = incoming.answer
        if answer.status == 410:
            raise _Expired
        if answer.status >= 300:
            raise refused(cluster.title, request, answer.status, answer.read(1 << 16))
        while not _is_over(end):
            line = answer.readline(_MOST_LINE)
            if not line.endswith(b"\n"):
                return  # the end; half a line comes again
            event = cast("dict[str, Any]", decode(line))
            found = cast("Object", event.get("object") or {})
            if event.get("type") == "ERROR":
                if found.get("code") == 410:
                    raise _Expired
                raise refused(cluster.title, request, int(found.get("code") or 500), json.dumps(found).encode())
            version = str(cast("Object", found.get("metadata") or {}).get("resourceVersion") or version)
            yield (None if event["type"] == "BOOKMARK" else Change(str(event["type"]), found, [])), version
