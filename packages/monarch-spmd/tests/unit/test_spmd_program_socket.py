"""The socket of a rank for its program: requests whose answer never comes, and a process without free descriptors."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from typing import Any

import pytest

from monarch.actor import ProcMesh
from monarch.actor.testing import isolated
from monarch.extension.channel import Channel, Message
from monarch.extension.program import ProgramLink
from monarch.spmd.program_requests import Request, Requests
from monarch.spmd.program_socket import ProgramSocket


class NoProcs:
    async def procs(self, run_id: str | None) -> list[ProcMesh]:
        raise AssertionError


def test_end_of_the_run_ends_waiting_requests() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        begun = asyncio.Event()
        answer: asyncio.Future[Message | OSError] = loop.create_future()

        async def never(_: Request) -> dict[str, Any]:
            begun.set()
            await loop.create_future()
            raise AssertionError

        requests = Requests(never, NoProcs())
        link = ProgramLink(requests.address)
        await asyncio.to_thread(link.send, {"do": "save"}, lambda found: loop.call_soon_threadsafe(answer.set_result, found))
        await begun.wait()
        requests.close()
        assert isinstance(await answer, OSError)
        # A later request has an answer, too.
        again: list[Message | OSError] = []
        link.send({"do": "save"}, again.append)
        assert isinstance(again[0], OSError)

    asyncio.run(run())


def test_run_that_is_gone_is_named() -> None:
    with pytest.raises(ConnectionError, match="the proc of this program does not answer: Connection refused"):
        ProgramLink("monarch-spmd-absent").ask({"do": "save"})


# In a process of its own: others of the test process need descriptors meanwhile.
@isolated
def test_connection_waits_for_a_free_descriptor() -> None:
    async def run() -> None:
        connected = asyncio.Event()
        channels: list[Channel] = []
        listening = ProgramSocket(lambda channel: (channels.append(channel), connected.set()))
        listening.listen()
        client = socket.socket(socket.AF_UNIX)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        raised: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(_first_free(), soft), hard))
            client.connect("\0" + listening.address)
            await asyncio.sleep(0.1)  # sleeps: no event follows from a connection that is not taken
            assert not connected.is_set()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        await connected.wait()
        listening.close()
        client.close()
        channels[0].close()
        assert raised == []

    asyncio.run(run())


def _first_free() -> int:
    """The lowest descriptor that is not open: a limit of this number admits no further one."""
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    return free
