"""The socket for breakpoints of a program: input of any process of the user, and the refusal of other users."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import sys
from typing import Any

import pytest

from monarch.extension.channel import Channel
from monarch.spmd.breakpoints import Breakpoints

PROMPT = {"prompt": "p", "function": "f", "path": "a.py", "line": 1}


def frame(head: dict[str, Any]) -> bytes:
    """The bytes of a message."""
    ours, theirs = socket.socketpair()
    with theirs:
        channel = Channel(ours)
        channel.send(head)
        channel.close()
        return theirs.recv(1 << 16)


GARBAGE = [
    b"GET / HTTP/1.1\r\n\r\n",
    b"\xff\xfe\n",
    b"x" * (3 << 20),
    frame({})[:-1],
    frame({}),
    frame({"text": 5}),
    frame({"text": "x", "more": 1}),
    frame({"prompt": "p"}),
    *(frame({**PROMPT, name: value}) for name, value in (("line", "x"), ("prompt", {}), ("more", 1))),
    # A text, and then data that is no message.
    frame({"text": "x"}) + b"y" * (3 << 20),
    # The program sends a second prompt and waits for neither answer.
    frame(PROMPT) * 2,
]


@pytest.mark.parametrize("sent", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_ends_its_connection_without_a_traceback(sent: bytes) -> None:
    raised: list[Any] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
        shown: list[str] = []
        breakpoints = Breakpoints("run", 0, {}, shown.append, lambda: None)
        breakpoints.listen()
        one = socket.socket(socket.AF_UNIX)
        one.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_connect(one, "\0" + breakpoints.address)
            try:
                await loop.sock_sendall(one, sent)
                one.shutdown(socket.SHUT_WR)
                assert await loop.sock_recv(one, 1) == b""
            except (BrokenPipeError, ConnectionResetError):
                pass  # the other end did not read everything
            while breakpoints.is_standing:  # polls: no event of the socket is later than this
                await asyncio.sleep(0)
        finally:
            one.close()
            breakpoints.close()
        assert shown == []

    asyncio.run(run())
    gc.collect()
    assert raised == []


@pytest.mark.skipif(os.geteuid() != 0, reason="another user is needed, and this user is not root")
@pytest.mark.parametrize("uid", [0, 65534])
def test_connection_of_another_user_is_closed_unread(uid: int) -> None:
    program = f"""
import os, socket, sys
os.setgid({uid})
os.setuid({uid})
one = socket.socket(socket.AF_UNIX)
one.settimeout(20)
one.connect("\\0" + sys.argv[1])
try:
    one.sendall({frame(PROMPT)!r})
    one.shutdown(socket.SHUT_WR)
    one.recv(1)
except (BrokenPipeError, ConnectionResetError):
    pass  # the other end did not read
"""
    sessions: list[None] = []

    async def run() -> None:
        breakpoints = Breakpoints("run", 0, {}, print, lambda: sessions.append(None))
        breakpoints.listen()
        try:
            peer = await asyncio.create_subprocess_exec(sys.executable, "-c", program, breakpoints.address)
            assert await peer.wait() == 0
        finally:
            breakpoints.close()

    asyncio.run(run())
    assert bool(sessions) is (uid == 0)
