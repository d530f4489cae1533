"""A flood of one listening socket, from a process of another user of the machine or of the same one.

    python -IS listener_flood.py KIND ADDRESS [--uid N] [--count N]

`KIND` is `churn` (connect and close in a loop), `silent` (connections without data), `garbage` (random bytes, then close), `deaf`
(random bytes without end, nothing is read) or `one` (one connection without data, whose end is printed as `ended`). `ADDRESS` is
`unix:@name`, `unix:/path` or `tcp:host:port`. The program prints `on` after the first attempt, or `shut out` if the file system does
not permit this user to connect. It ends with its standard input, and then prints its counts.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

KINDS = ("churn", "silent", "garbage", "deaf")
# A user without processes of its own elsewhere.
STRANGER = 65534
# Seconds between two attempts while the backlog of the listener is full.
FULL_S = 0.001
# Connections between two checks of the standard input.
BATCH = 64


def listening_sockets(pid: int) -> list[str]:
    """The addresses at which a process listens, in the form for `listener_flood`, found by its descriptors, whatever their names."""
    inodes: set[str] = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(entry).removeprefix("socket:[").removesuffix("]"))
    found: list[str] = []
    for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]:
        # The flags of a listening socket, and the type of a stream or packet socket.
        fields = line.split(maxsplit=7)
        if len(fields) == 8 and fields[3] == "00010000" and fields[6] in inodes:
            found.append(f"unix:{fields[7]}")
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[9] in inodes:
            host, port = fields[1].split(":")
            found.append(f"tcp:{socket.inet_ntoa(struct.pack('=I', int(host, 16)))}:{int(port, 16)}")
    return found


def is_bulk(address: str) -> bool:
    return "monarch-bulk" in address


class ListenerFlood:
    """A running flood; `end` ends it and gives its counts."""

    def __init__(self, kind: str, address: str, uid: int | None = None, count: int = 64) -> None:
        who = [] if uid is None else ["--uid", str(uid)]
        self.process = subprocess.Popen(
            [sys.executable, "-IS", __file__, kind, address, "--count", str(count), *who],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Unbuffered, so that a select sees all unread data.
            bufsize=0,
        )
        assert self.process.stdout is not None
        try:
            self.shut_out = self.process.stdout.readline() == b"shut out\n"
        except BaseException:
            self.__exit__(True)
            raise

    def end(self) -> dict[str, int]:
        if self.process.returncode is None:
            out, _ = self.process.communicate()
            self.counts = json.loads(out.splitlines()[-1])
            assert self.process.returncode == 0
        return self.counts

    def __enter__(self) -> ListenerFlood:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.end()
        else:
            self.process.kill()
            self.process.communicate()


# ---- the program


class Target:
    """The address of the listener and how the flood connects to it."""

    def __init__(self, address: str) -> None:
        kind, _, rest = address.partition(":")
        self.is_unix = kind == "unix"
        if self.is_unix:
            self.place: Any = "\0" + rest[1:] if rest.startswith("@") else rest
        else:
            host, _, port = rest.rpartition(":")
            self.place = ("127.0.0.1" if host == "0.0.0.0" else host, int(port))
        self.kinds = [socket.SOCK_STREAM, socket.SOCK_SEQPACKET]
        self.counts = {"connections": 0, "full": 0, "refused": 0}

    def connect(self) -> socket.socket | None:
        """A connection; None while the listener accepts none."""
        made = socket.socket(socket.AF_UNIX if self.is_unix else socket.AF_INET, self.kinds[0])
        try:
            if self.is_unix:
                made.setblocking(False)
            elif self.place[0].startswith("127."):
                # The source addresses and ports are separate, and closed at once: other programs of this machine need ports too.
                made.bind((f"127.77.{random.randrange(256)}.{random.randrange(1, 255)}", 0))
                made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            made.connect(self.place)
        except OSError as e:
            made.close()
            if e.errno == errno.EPROTOTYPE and len(self.kinds) > 1:
                del self.kinds[0]
                return self.connect()
            if e.errno == errno.EACCES:
                raise PermissionError(self.place) from e
            self.counts["full" if e.errno in (errno.EAGAIN, errno.EMFILE) else "refused"] += 1
            time.sleep(FULL_S)  # sleeps: until the listener may have taken some
            return None
        made.setblocking(False)
        self.counts["connections"] += 1
        return made


def churn(target: Target, _: list[socket.socket], __: int) -> None:
    made = target.connect()
    if made is not None:
        made.close()


def garbage(target: Target, _: list[socket.socket], __: int) -> None:
    made = target.connect()
    if made is not None:
        with made, contextlib.suppress(OSError):
            made.send(random.randbytes(random.randrange(1, 4000)))


def silent(target: Target, held: list[socket.socket], count: int) -> None:
    if len(held) < count:
        made = target.connect()
        if made is not None:
            held.append(made)
        return
    # Ended connections are opened again.
    for done in select.select(held, [], [], 0.05)[0]:
        with contextlib.suppress(BlockingIOError):
            try:
                over = not done.recv(4096)
            except ConnectionResetError:
                over = True
            if over:
                held.remove(done)
                done.close()


def deaf(target: Target, held: list[socket.socket], count: int) -> None:
    if len(held) < min(count, 16):
        made = target.connect()
        if made is not None:
            held.append(made)
        return
    for one in held:
        try:
            one.send(random.randbytes(4000))
        except BlockingIOError:
            continue
        except OSError:
            held.remove(one)
            one.close()
            return
    select.select([], [], [], FULL_S)


def one(target: Target, held: list[socket.socket], _: int) -> None:
    """A single connection, with which the kinds of floods are compared."""
    if not target.counts["connections"]:
        made = target.connect()
        if made is not None:
            held.append(made)
        # `on` must be printed before `ended`.
        return
    for done in select.select(held, [], [], 0.01)[0]:
        if not done.recv(4096):
            held.remove(done)
            done.close()
            print("ended", flush=True)


PROGRAMS = {"churn": churn, "silent": silent, "garbage": garbage, "deaf": deaf, "one": one}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=PROGRAMS)
    parser.add_argument("address")
    parser.add_argument("--uid", type=int)
    parser.add_argument("--count", type=int, default=64)
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The user changes after this file and the interpreter have been read, which the other user may not be allowed to.
    if options.uid is not None:
        os.setgroups([])
        os.setgid(options.uid)
        os.setuid(options.uid)
    target, held = Target(options.address), list[socket.socket]()
    do = PROGRAMS[options.kind]
    said = False
    while True:
        try:
            for _ in range(BATCH if said else 1):
                do(target, held, options.count)
        except PermissionError:
            print("shut out", flush=True)
            said = True
            sys.stdin.read()
        if not said and any(target.counts.values()):
            said = True
            print("on", flush=True)
        if select.select([sys.stdin], [], [], 0)[0]:
            break
    for one in held:
        one.close()
    print(json.dumps(target.counts), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
