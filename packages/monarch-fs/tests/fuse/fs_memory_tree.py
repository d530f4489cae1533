"""A tree in memory, and a server of it: `python fs_memory_tree.py FD TARGET [resumed] [live] [slow]`. Commands come on standard input."""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
import threading
from collections.abc import Iterator
from typing import Any

from monarch.fs._kernel import interposer, poll_loop
from monarch.fs._tree.operations import DEVICE, ROOT, Attr, Entry, MountOptions, StatFs
from monarch.fs.backends.choice import make_backend
from monarch.fs.backends.serving import ServingBackend

BIG = bytes(range(256)) * (16 << 10)
CONTENT: dict[bytes, bytes] = {b"small": b"hello", b"big": BIG, b"stuck": b"never", b"empty": b"", b"grows": b"first\n", b"raises": b"x"}
SCRIPT = b"#!/bin/sh\necho ran $0\n"
TIME = 1_700_000_000_123_456_789


def emit(line: str) -> None:
    """A line in one piece: two threads write lines."""
    os.write(1, line.encode() + b"\n")


class MemoryTree:
    """Files of `CONTENT`, a directory `dir` with 300 files, a link and a program.

    A read of `stuck`, and in a live tree a look-up of `slow`, waits for ever.
    """

    def __init__(self, live: bool) -> None:
        self.valid = 0.0 if live else float("inf")
        self.names: dict[int, dict[bytes, int]] = {ROOT: {}}
        self.content: dict[int, bytes] = {}
        self.modes: dict[int, int] = {ROOT: stat.S_IFDIR | 0o755}
        for name, data in {**CONTENT, b"program": open("/bin/true", "rb").read(), b"script": SCRIPT}.items():
            self.add(ROOT, name, stat.S_IFREG | (0o755 if name in (b"program", b"script") else 0o644), data)
        self.add(ROOT, b"link", stat.S_IFLNK | 0o777, b"small")
        folder = self.add(ROOT, b"dir", stat.S_IFDIR | 0o755, b"")
        self.names[folder] = {}
        for number in range(300):
            self.add(folder, b"f%03d" % number, stat.S_IFREG | 0o644, b"file %d" % number)
        self.forgotten = 0
        self.waiting: list[poll_loop.Waiter[bytes]] = []

    def add(self, parent: int, name: bytes, mode: int, data: bytes) -> int:
        inode = len(self.modes) + 1
        self.names[parent][name] = inode
        self.modes[inode], self.content[inode] = mode, data
        return inode

    def attr(self, inode: int) -> Attr:
        size = len(self.content.get(inode, b""))
        return Attr(inode, self.modes[inode], 1, os.getuid(), os.getgid(), size, -(-size // 512), TIME, self.valid)

    def lookup(self, parent: int, name: bytes) -> Any:
        if name == b"slow":
            emit("looks")
            return poll_loop.Waiter[Entry]()
        inode = self.names[parent].get(name)
        return Entry(name, None if inode is None else self.attr(inode), self.valid)

    def readlink(self, inode: int) -> bytes:
        return self.content[inode]

    def readdir(self, inode: int, after: int) -> Iterator[Entry]:
        for cookie, (name, child) in enumerate(list(self.names[inode].items())[after:], after + 1):
            yield Entry(name, self.attr(child), self.valid, cookie)

    async def read(self, inode: int, offset: int, size: int) -> bytes | memoryview:
        if inode == self.names[ROOT][b"stuck"]:
            self.waiting.append(poll_loop.Waiter[bytes]())
            emit("waits")
            return await self.waiting[-1]
        if inode == self.names[ROOT][b"raises"]:
            raise OSError(errno.EIO, "on purpose")
        return memoryview(self.content[inode])[offset : offset + size]

    def listxattr(self, inode: int) -> list[bytes]:
        return [b"user.colour"]

    def getxattr(self, inode: int, name: bytes) -> bytes:
        if name != b"user.colour":
            raise OSError(errno.ENODATA, "no such attribute")
        return b"blue"

    def statfs(self) -> StatFs:
        return StatFs(10 << 20, len(self.modes))

    def forget(self, inode: int, n: int) -> None:
        self.forgotten += n


def commands(tree: MemoryTree, backend: ServingBackend) -> None:
    for line in sys.stdin:
        verb, *words = line.split()
        answer: object = None
        try:
            if verb == "counters":
                answer = {**backend.counters(), "opens": backend.opens, "reason": backend.reason, "backend": backend.name}
            elif verb == "change":
                inode = tree.names[ROOT][words[0].encode()]
                tree.content[inode] = words[1].encode()
                backend.invalidate([(ROOT, words[0].encode())], [inode])
            elif verb == "new":
                tree.add(ROOT, words[0].encode(), stat.S_IFREG | 0o644, b"new")
                backend.invalidate([(ROOT, words[0].encode())], [ROOT])
            elif verb == "append":
                tree.content[tree.names[ROOT][words[0].encode()]] += words[1].encode() + b"\n"
            elif verb == "store":
                inode = tree.names[ROOT][words[0].encode()]
                backend.store(inode, 0, memoryview(tree.content[inode]))
            elif verb == "finish":
                for waiter in tree.waiting:
                    waiter.set_result(b"never")
            elif verb == "stop":
                backend.stop()
            elif verb == "unmount":
                backend.unmount(lazy=False)
        except OSError as e:
            answer = {"errno": e.errno, "text": str(e)}
        emit(json.dumps(answer))


def main() -> None:
    fd, target, *flags = sys.argv[1:]
    tree, live = MemoryTree("live" in flags), "live" in flags
    if "bare" in flags:
        # A pyfuse3 that was not built by this project.
        interposer.SHIPPED = "missing.so"
    backend = make_backend(os.environ.get("BACKEND", DEVICE), int(fd), resumed="resumed" in flags)
    threading.Thread(target=commands, args=(tree, backend), daemon=True).start()
    options = MountOptions(immutable=not live, read_timeout=0.5 if "short" in flags else 60.0)

    async def serve() -> None:
        # Written after the back end has started, so that a command finds it; requests that a connection sends again may be earlier.
        if "resumed" in flags:
            emit("serves")
        else:
            poll_loop.current_loop().call_later(0, lambda: emit("serves"))
        await backend.run(tree, target, options)

    poll_loop.run(serve())
    emit("ended")


if __name__ == "__main__":
    main()
