"""What the server of a gather mount asks a host, and the answers: one line of JSON, and for reads the bytes of the file after it.

Nothing of it is pickled. Paths are bytes; JSON has them as text with the escapes of `os.fsdecode`, which every sequence of bytes has.
"""

from __future__ import annotations

import errno
import json
import os
from typing import Any, NamedTuple, cast

from monarch.fs._gather.file_server import FileServer
from monarch.fs._gather.remote_attr import RemoteAttr
from monarch.fs._gather.slots import Slots
from monarch.fs._gather.watcher import Changed
from monarch.fs._relay.peer import Peer

# The name of requests for files of a root, which have the token of their subscription; changes of the root are sent under the token.
REQUESTS = "monarch.fs.gather"
Body = dict[str, Any]
# The most bytes of an answer: a page of the longest names, with escapes, is larger than the bytes of a read.
LARGEST_ANSWER = 16 << 20
_LONGEST_NAME = 255
# The values of the fields of `RemoteAttr` that the kernel accepts.
_MOST_MODE, _MOST, _MOST_NUMBER = 0o177777, 2**63 - 1, 2**64 - 1


class Answer(NamedTuple):
    """`body` has what was asked for, or `errno`; `blob` has bytes of a file, or, with `size` in the body, the handle of a slot."""

    body: Body
    blob: bytes = b""


def encode(body: Body, blob: bytes = b"") -> bytes:
    return json.dumps(body, separators=(",", ":")).encode() + b"\n" + blob


def decode(data: bytes) -> Answer:
    """`ValueError` for bytes that are no message."""
    end = data.find(b"\n")
    try:
        body = json.loads(data[:end] if end >= 0 else data)
    except RecursionError as e:
        raise ValueError(str(e)) from None
    if not isinstance(body, dict):
        raise ValueError("a message of a gather mount is an object")
    return Answer(cast("Body", body), data[end + 1 :] if end >= 0 else b"")


def path_text(path: bytes) -> str:
    return os.fsdecode(path)


def path_bytes(text: str) -> bytes:
    return os.fsencode(text)


def peer_from(found: list[Any]) -> Peer:
    proc, name, places = found
    return Peer(proc, name, tuple((job, host) for job, host in places))


def answer(server: FileServer, body: Body, slots: Slots | None = None) -> bytes:
    """The encoded answer to a request for a root; an `OSError` becomes its errno."""
    try:
        return _answered(server, body, slots)
    except OSError as e:
        return encode({"errno": e.errno or errno.EIO, "reason": e.strerror or str(e)})
    except (KeyError, TypeError, ValueError) as e:
        return encode({"errno": errno.EINVAL, "reason": f"malformed request: {e!r}"})


def _answered(server: FileServer, body: Body, slots: Slots | None) -> bytes:
    what, path = body["op"], path_bytes(body["path"])
    identity = (int(body["file"][0]), int(body["file"][1])) if body.get("file") else None
    if what == "attr":
        return encode({"attr": server.attr(path) if identity is None else server.attr_of(path, identity)})
    if what == "list":
        page = server.list(path, path_bytes(body["after"]))
        entries = [(path_text(name), attr) for name, attr in page.entries]
        return encode({"entries": entries, "last": page.is_last, "after": path_text(page.after)})
    if what == "attrs":
        return encode({"attrs": server.attrs(path, [path_bytes(name) for name in body["names"]])})
    if what == "link":
        return encode({"link": path_text(server.link(path))})
    if identity is None:
        raise ValueError(f"{what!r} needs a file")
    if what == "hold":
        return encode({"attr": server.hold(path, identity)})
    if what == "read":
        part = server.read(path, identity, int(body["offset"]), int(body["size"]))
        if slots is not None and "slot" in body and (handle := slots.put(int(body["slot"]), part.data)) is not None:
            return encode({"attr": part.attr, "size": len(part.data)}, handle)
        return encode({"attr": part.attr}, part.data)
    raise ValueError(f"no operation {what!r}")


def encode_changes(changes: list[Changed] | None) -> bytes:
    if changes is None:
        return encode({"changes": None})
    return encode({"changes": [(path_text(change.directory), path_text(change.name), change.renewed) for change in changes]})


def decode_changes(body: Body) -> list[Changed] | None:
    """None for a report that is malformed, as for one that anything may have changed."""
    try:
        found = body["changes"]
        return None if found is None else [Changed(path_bytes(directory), path_bytes(name), renewed) for directory, name, renewed in found]
    except (KeyError, TypeError, ValueError):
        return None


def attr_from(found: Any) -> RemoteAttr:
    """`ValueError` or `TypeError` for values that no file has."""
    mode, size, mtime, ctime, blocks, device, number = found
    # Written out: a listing has thousands of them, and a loop over bounds takes several times as long.
    are_integers = type(mode) is type(size) is type(mtime) is type(ctime) is type(blocks) is type(device) is type(number) is int
    if not (
        are_integers
        and 0 <= mode <= _MOST_MODE
        and 0 <= size <= _MOST
        and -_MOST <= mtime <= _MOST
        and -_MOST <= ctime <= _MOST
        and 0 <= blocks <= _MOST
        and 0 <= device <= _MOST_NUMBER
        and 0 <= number <= _MOST_NUMBER
    ):
        raise ValueError(f"attributes {found!r}")
    return RemoteAttr(mode, size, mtime, ctime, blocks, device, number)


def name_from(text: Any) -> bytes:
    """`ValueError` or `TypeError` for what names no file of a directory."""
    name = path_bytes(text)
    if not 0 < len(name) <= _LONGEST_NAME or name in (b".", b"..") or b"/" in name or b"\0" in name:
        raise ValueError(f"a name {text!r}")
    return name
