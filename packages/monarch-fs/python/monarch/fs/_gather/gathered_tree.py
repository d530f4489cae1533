"""Directories of hosts as one tree: what the server of a gather mount answers the kernel.

Files are numbered by their host and identity, so a log that is rotated keeps its number under its new name, and an open file goes on.
Directories are numbered by their host and path. Each answer but the names of the points is asked for at the host of the file unless the
kernel has it still; attributes are valid for a second, or until the host reports a change. Names that are looked up in the order of their
listing, as `ls -l` and `find` do it, are asked for many at a time. All runs on the loop of the server, which other
threads only hand answers and reports to.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Protocol, TypeVar

from monarch.fs._gather.block_cache import BLOCK, BlockCache, Version
from monarch.fs._gather.confined_root import LONGEST_LISTING
from monarch.fs._gather.file_server import LARGEST_READ, PAGE
from monarch.fs._gather.host_request import Answer, Body, attr_from, name_from, path_bytes, path_text
from monarch.fs._gather.live_node import VALID, LiveNode
from monarch.fs._gather.remote_attr import RemoteAttr
from monarch.fs._gather.watcher import Changed
from monarch.fs._kernel.poll_loop import Waiter
from monarch.fs._tree.operations import ROOT, Attr, Entry, StatFs

T = TypeVar("T")
_log = logging.getLogger("monarch.fs")
_BLOCKS_OF_READ = LARGEST_READ // BLOCK
# Names per request if names are looked up in order.
_NAMES_AHEAD = 256


class Hosts(Protocol):
    """Where hosts are asked."""

    def ask(self, host: int, body: Body, then: Callable[[Answer], object]) -> None:
        """`then` is called on the loop."""
        ...


class GatheredTree:
    """The tree of a gather mount: a live one, whose methods may wait. `points` has the directory of each host, relative to the root.

    `is_file`: the root of the tree is a file, that of its only host.
    """

    def __init__(
        self,
        points: Sequence[str],
        hosts: Hosts,
        cache_bytes: int,
        invalidate: Callable[[list[tuple[int, bytes]], list[int]], object],
        *,
        is_file: bool = False,
    ) -> None:
        self._hosts, self._invalidate, self._directories = hosts, invalidate, points
        # Hosts whose malformed answers were logged.
        self._malformed: set[int] = set()
        self.cache = BlockCache(cache_bytes)
        self._nodes: dict[int, LiveNode] = {}
        self._numbers: dict[tuple[object, ...], int] = {}
        self._keys: dict[int, tuple[object, ...]] = {}
        self._at: dict[tuple[int, bytes], int] = {}
        self._last = ROOT - 1
        # Blocks with a pending request.
        self._coming: dict[tuple[int, int, Version], Waiter[bytes]] = {}
        self._add(-1, b"", None)
        for host, directory in enumerate(points):
            self._add_point(host, directory)
        if is_file:
            # Until the host has answered.
            self._nodes[ROOT].attr = RemoteAttr(stat.S_IFREG | 0o400, 0, 0, 0, 0, 0, 0)

    def _add_point(self, host: int, directory: str) -> None:
        parts = [os.fsencode(part) for part in directory.split("/") if part]
        at = self._nodes[ROOT]
        if not parts:
            at.host = host
            self._at[host, b""] = ROOT
            return
        for part in parts[:-1]:
            if part not in at.children:
                at.children[part] = self._add(-1, b"", None)
            at = at.children[part]
        at.children[parts[-1]] = self._add(host, b"", ("directory", host, b""))

    def _add(self, host: int, path: bytes, key: tuple[object, ...] | None) -> LiveNode:
        self._last += 1
        node = self._nodes[self._last] = LiveNode(self._last, host, path)
        # Nodes without a key, and the roots of hosts, remain.
        if key is not None:
            self._numbers[key] = self._last
            if path:
                self._keys[self._last] = key
            if key[0] == "directory":
                self._at[host, path] = self._last
        return node

    def _node_of(self, host: int, path: bytes, attr: RemoteAttr, asked: float) -> LiveNode:
        """The node of a name that a host has shown."""
        key = ("directory", host, path) if attr.is_directory else ("file", host, *attr.identity, stat.S_IFMT(attr.mode))
        inode = self._numbers.get(key)
        node = self._add(host, path, key) if inode is None else self._nodes[inode]
        if node.path != path:
            if self._at.get((host, node.path)) == node.inode:
                del self._at[host, node.path]
            node.path = path
        self._at[host, path] = node.inode
        node.take(attr, asked)
        return node

    def _node(self, inode: int) -> LiveNode:
        found = self._nodes.get(inode)
        if found is None:
            raise OSError(errno.ESTALE, "no such inode")
        return found

    async def _ask(self, host: int, body: Body, read: Callable[[Body], T]) -> T:
        done: Waiter[Answer] = Waiter()
        self._hosts.ask(host, body, done.set_result)
        return self._content(host, await done, read)

    def _content(self, host: int, answer: Answer, read: Callable[[Body], T]) -> T:
        """What `read` finds in an answer; `OSError` where the host has refused, is lost, or has answered something malformed."""
        try:
            if "errno" not in answer.body:
                return read(answer.body)
            number, reason = answer.body["errno"], answer.body.get("reason")
            if not isinstance(number, int) or number not in errno.errorcode:
                raise ValueError(f"errno {number!r}")
        except (KeyError, TypeError, ValueError) as e:
            if host not in self._malformed:
                self._malformed.add(host)
                _log.warning("%s: malformed answer: %s", self._directories[host] or "the host", f"{e!r}"[:200])
            raise OSError(errno.EIO, "malformed answer of the host") from None
        raise OSError(number, str(reason))

    # Requests of the kernel.

    async def lookup(self, parent: int, name: bytes) -> Entry:
        directory = self._node(parent)
        if directory.host < 0:
            child = directory.children.get(name)
            if child is None:
                return Entry(name, None)
            return self._taken(name, child, await self._shown_point(child))
        path = _joined(directory.path, name)
        asked = time.monotonic()
        try:
            attr, asked = await self._attr_of(directory, name)
        except FileNotFoundError:
            return Entry(name, None, valid=VALID if asked > directory.expired else 0.0)
        if not attr.is_shown:
            return Entry(name, None, valid=VALID)
        node = self._node_of(directory.host, path, attr, asked)
        return self._taken(name, node, node.shown(), max(0.0, asked + VALID - time.monotonic()))

    async def _attr_of(self, directory: LiveNode, name: bytes) -> tuple[RemoteAttr, float]:
        """The attributes of a name, and when the host was asked for them."""
        known = directory.ahead.pop(name, None)
        place = directory.place(name)
        goes_on, directory.looked = place >= 0 and place == directory.looked + 1, place
        asked = time.monotonic()
        if known is not None and asked < known[1] + VALID:
            return known
        if goes_on:
            names = [found for found, _ in directory.listing[place : place + _NAMES_AHEAD]]
            body: Body = {"op": "attrs", "path": path_text(directory.path), "names": [path_text(found) for found in names]}
            attrs = await self._ask(directory.host, body, lambda found: [found and attr_from(found) for found in found["attrs"]])
            if len(attrs) != len(names):
                raise OSError(errno.EIO, f"attributes of {len(attrs)} names, not {len(names)}")
            found = {one: (attr, asked) for one, attr in zip(names, attrs, strict=True) if attr is not None}
            own = found.pop(name, None)
            # Changes reported in the meantime may be later than the answer.
            directory.ahead = found if asked > directory.reported else {}
            if own is not None:
                return own
        return await self._ask(directory.host, {"op": "attr", "path": path_text(_joined(directory.path, name))}, _attr), asked

    def _taken(self, name: bytes, node: LiveNode, attr: Attr, valid: float = float("inf")) -> Entry:
        node.references += 1
        return Entry(name, attr, valid=valid)

    async def _shown_point(self, node: LiveNode) -> Attr:
        """Of the root of a host, a directory in any case while the host is lost."""
        try:
            return await self.attr(node.inode)
        except OSError:
            # A file as a root keeps its kind.
            return node.shown()._replace(valid=0.0)

    async def attr(self, inode: int) -> Attr:
        node = self._node(inode)
        if node.host < 0:
            return node.shown()
        if not node.is_fresh:
            try:
                await self._refresh(node)
            except OSError:
                if node.path:
                    raise
                # The directory of a lost host remains listed.
                return node.shown()._replace(valid=0.0)
        return node.shown()

    async def _refresh(self, node: LiveNode) -> None:
        asked = time.monotonic()
        body: Body = {"op": "attr", "path": path_text(node.path)}
        if node.attr is not None and not node.attr.is_directory and node.path:
            body["file"] = node.attr.identity
        attr = await self._ask(node.host, body, _attr)
        # The root of the mount keeps its kind, because the kernel has no other inode for it; the kind of the root of a host may change.
        keeps_kind = node.inode == ROOT or (node.attr is not None and node.path)
        if keeps_kind and stat.S_IFMT(attr.mode) != stat.S_IFMT(node.shown().mode):
            raise OSError(errno.ESTALE, "another file has this name now")
        node.take(attr, asked)

    async def readlink(self, inode: int) -> bytes:
        node = self._node(inode)
        if node.host < 0:
            raise OSError(errno.EINVAL, "no link")
        return await self._ask(node.host, {"op": "link", "path": path_text(node.path)}, lambda body: path_bytes(body["link"]))

    async def readdir(self, inode: int, after: int) -> Iterator[Entry]:
        node = self._node(inode)
        if node.host < 0:
            if not after:
                await self._refresh_points(node)
            return self._points(node, after)
        if not after:
            asked = time.monotonic()
            node.list(await self._list(node), asked)
        return self._entries(node, after)

    async def _refresh_points(self, node: LiveNode) -> None:
        """Asks all hosts at once: the time to find several of them lost is the time for one."""
        asked = time.monotonic()
        answers: list[tuple[LiveNode, Waiter[Answer]]] = []
        for child in node.children.values():
            if child.host >= 0 and not child.is_fresh:
                answers.append((child, Waiter()))
                self._hosts.ask(child.host, {"op": "attr", "path": ""}, answers[-1][1].set_result)
        for child, waiter in answers:
            answer = await waiter
            with suppress(OSError):
                child.take(self._content(child.host, answer, _attr), asked)

    async def _list(self, node: LiveNode) -> list[tuple[bytes, RemoteAttr]]:
        found: list[tuple[bytes, RemoteAttr]] = []
        position = ""
        # A host with an endless listing exhausts neither the memory of this process nor its time.
        for _ in range(LONGEST_LISTING // PAGE + 1):
            body: Body = {"op": "list", "path": path_text(node.path), "after": position}
            entries, last, after = await self._ask(node.host, body, _page)
            found += entries
            if last:
                return found
            if len(found) > LONGEST_LISTING or not entries and after == position:
                break
            position = after
        raise OSError(errno.EOVERFLOW, f"more than {LONGEST_LISTING} names", node.path)

    def _points(self, node: LiveNode, after: int) -> Iterator[Entry]:
        for number, (name, child) in enumerate(sorted(node.children.items())[after:], after + 1):
            yield Entry(name, child.shown(), cookie=number)
            child.references += 1

    def _entries(self, directory: LiveNode, after: int) -> Iterator[Entry]:
        listing, positions, asked = directory.listing, directory.positions, directory.listed
        for name, attr in listing[bisect_right(listing, after, key=lambda entry: positions[entry[0]]) :]:
            node = self._node_of(directory.host, _joined(directory.path, name), attr, asked)
            left = max(0.0, asked + VALID - time.monotonic())
            try:
                yield Entry(name, node.shown(), valid=left, cookie=positions[name])
                # The next name was requested: the kernel has accepted this one.
                node.references += 1
            finally:
                self.forget(node.inode, 0)

    async def open(self, inode: int) -> None:
        """Holds the file on its host, so that reads find it also after a rename."""
        node = self._node(inode)
        if node.host < 0 or node.attr is None:
            raise OSError(errno.EISDIR if node.host < 0 else errno.EIO, "no file")
        if not node.path:
            # A root that is a file is the file that has its name now.
            await self._refresh(node)
        asked = time.monotonic()
        body: Body = {"op": "hold", "path": path_text(node.path), "file": node.attr.identity}
        node.take(await self._ask(node.host, body, _attr), asked)

    async def read(self, inode: int, offset: int, size: int) -> bytes:
        node = self._node(inode)
        if node.host < 0 or node.attr is None:
            raise OSError(errno.EIO, "no file")
        if not node.is_fresh:
            await self._refresh(node)
        attr = node.attr
        if not size or offset >= attr.size:
            return b""
        version = attr.version
        last_of_file = (attr.size - 1) // BLOCK
        first, last = offset // BLOCK, min((offset + size - 1) // BLOCK, last_of_file)
        ahead = node.window.after(first, last)
        needed = self._blocks(node, version, range(first, last + 1))
        # Half of the window in one request: a request per block would cost more than its bytes.
        if ahead and not self._has(node, version, min(last + max(ahead // 2, 1), last_of_file)):
            self._blocks(node, version, range(last + 1, min(last + ahead, last_of_file) + 1))
        parts: list[bytes] = []
        for block in needed:
            data = block if isinstance(block, bytes) else await block
            parts.append(data)
            if len(data) < BLOCK:
                break
        start = offset - first * BLOCK
        return b"".join(parts)[start : start + size]

    def _has(self, node: LiveNode, version: Version, number: int) -> bool:
        return (node.inode, number, version) in self._coming or self.cache.get(node.inode, number, version) is not None

    def _blocks(self, node: LiveNode, version: Version, numbers: range) -> list[bytes | Waiter[bytes]]:
        """The blocks, or where they will be; those that are neither here nor under way are asked for."""
        found: list[bytes | Waiter[bytes]] = []
        runs: list[list[int]] = []
        for number in numbers:
            block = self.cache.get(node.inode, number, version) or self._coming.get((node.inode, number, version))
            if block is None:
                block = self._coming[node.inode, number, version] = Waiter()
                if not runs or runs[-1][-1] != number - 1 or len(runs[-1]) == _BLOCKS_OF_READ:
                    runs.append([])
                runs[-1].append(number)
            found.append(block)
        for run in runs:
            self._fetch(node, version, run)
        return found

    def _fetch(self, node: LiveNode, version: Version, run: list[int]) -> None:
        assert node.attr is not None
        inode, asked = node.inode, time.monotonic()
        waiters = [self._coming[inode, number, version] for number in run]

        def then(answer: Answer) -> None:
            for number in run:
                del self._coming[inode, number, version]
            try:
                attr = self._content(node.host, answer, _attr)
            except OSError as e:
                for waiter in waiters:
                    waiter.set_exception(e)
                return
            if inode in self._nodes:
                if attr.version != version:
                    # The reader gets the current bytes; the attributes follow.
                    node.expire()
                node.take(attr, asked)
            for at, (number, waiter) in enumerate(zip(run, waiters, strict=True)):
                data = answer.blob[at * BLOCK : (at + 1) * BLOCK]
                self.cache.put(inode, number, attr.version, data)
                waiter.set_result(data)

        body: Body = {"op": "read", "path": path_text(node.path), "file": node.attr.identity}
        self._hosts.ask(node.host, body | {"offset": run[0] * BLOCK, "size": len(run) * BLOCK}, then)

    def listxattr(self, inode: int) -> list[bytes]:
        # After this error the kernel does not ask again; `ls -l` asks for each file.
        raise OSError(errno.ENOSYS, "no extended attributes")

    def getxattr(self, inode: int, name: bytes) -> bytes:
        raise OSError(errno.ENOSYS, "no extended attributes")

    def statfs(self) -> StatFs:
        return StatFs(0, len(self._nodes))

    def forget(self, inode: int, n: int) -> None:
        node = self._nodes.get(inode)
        if node is None:
            return
        node.references -= n
        key = self._keys.get(inode)
        if node.references > 0 or key is None:
            return
        del self._nodes[inode], self._keys[inode], self._numbers[key]
        if self._at.get((node.host, node.path)) == inode:
            del self._at[node.host, node.path]

    # Reports of hosts.

    def changed(self, host: int, changes: list[Changed] | None) -> None:
        """Drops what is out of date here and in the kernel. None: anything of the host may have changed."""
        inodes: set[int] = set()
        names: list[tuple[int, bytes]] = []
        if changes is None:
            for node in self._nodes.values():
                if node.host == host:
                    node.reported, node.ahead = time.monotonic(), {}
                    inodes.add(node.inode)
                    if (parent := self._at.get((host, os.path.dirname(node.path)))) is not None and node.path:
                        names.append((parent, os.path.basename(node.path)))
        for change in changes or ():
            directory = self._at.get((host, change.directory))
            if directory is not None:
                self._nodes[directory].reported = time.monotonic()
                self._nodes[directory].ahead.pop(change.name, None)
            path = _joined(change.directory, change.name)
            inode = self._at.get((host, path))
            if inode is not None:
                inodes.add(inode)
            if change.renewed and directory is not None and change.name:
                inodes.add(directory)
                names.append((directory, change.name))
        for inode in inodes:
            self._nodes[inode].expire()
        self._invalidate(names, sorted(inodes))


def _attr(body: Body) -> RemoteAttr:
    return attr_from(body["attr"])


def _page(body: Body) -> tuple[list[tuple[bytes, RemoteAttr]], bool, str]:
    """Names of a directory that are shown, whether there are no more, and the last name of the page."""
    entries = [(name_from(text), attr_from(values)) for text, values in body["entries"]]
    return [(name, attr) for name, attr in entries if attr.is_shown], bool(body["last"]), body["after"]


def _joined(directory: bytes, name: bytes) -> bytes:
    return directory + b"/" + name if directory else name
