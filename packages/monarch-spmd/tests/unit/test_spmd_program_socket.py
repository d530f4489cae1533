"""The socket of a rank for its program: requests whose answer never comes, and a process without free descriptors."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import Mapping
from typing import Any

from monarch.extension.channel import Channel
from monarch.spmd.program_socket import ProgramSocket
from monarch.spmd.snapshot_link import Link
from monarch.spmd.snapshot_requests import Request, Requests


def test_end_of_the_run_ends_waiting_requests() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        begun = asyncio.Event()
        answer: asyncio.Future[Mapping[str, Any]] = loop.create_future()

        async def never(_: Request) -> dict[str, Any]:
            begun.set()
            await loop.create_future()
            raise AssertionError

        requests = Requests(never)
        link = Link(requests.address)
        await asyncio.to_thread(link.send, {"do": "save"}, lambda found: loop.call_soon_threadsafe(answer.set_result, found))
        await begun.wait()
        requests.close()
        assert "the run of this program does not answer" in (await answer)["error"]
        # A later request has an answer, too.
        again: list[Mapping[str, Any]] = []
        link.send({"do": "save"}, again.append)
        assert "does not answer" in again[0]["error"]

    asyncio.run(run())


def test_run_that_is_gone_is_named() -> None:
    answers: list[Mapping[str, Any]] = []
    Link("monarch-spmd-absent").send({"do": "save"}, answers.append)
    assert answers == [{"error": "the run of this program does not answer: Connection refused"}]


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
