"""Handles as bytes: they work in another program, and are refused when they are over, changed or incomplete."""

from __future__ import annotations

import asyncio
import base64
import os
import struct
import subprocess
import sys
import warnings
import zlib
from typing import Any

import pytest
from eventually import eventually

from monarch.actor import Actor, Channel, HandleError, endpoint, handle_bytes, handle_from_bytes, this_host
from tools.external_process import Adder

PRELUDE = """
import os
from monarch.actor import HandleError, handle_from_bytes
def code(data):
    try:
        handle_from_bytes(data)
    except HandleError as error:
        return error.code
data = os.environ["HANDLE"]
"""


def elsewhere(code: str, data: bytes) -> list[str]:
    """The output of another program of the same user, which has the bytes in its environment."""
    variables = {**os.environ, "HANDLE": data.decode(), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", PRELUDE + code], env=variables, capture_output=True, text=True, timeout=28, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def forged(data: bytes) -> bytes:
    """The bytes with another number, and a check sum that fits."""
    mark, _, text = data.partition(b".")
    ticket = bytearray(base64.urlsafe_b64decode(text)[:-4])
    ticket[16] ^= 1
    return mark + b"." + base64.urlsafe_b64encode(bytes(ticket) + struct.pack("<I", zlib.crc32(ticket)))


def refused(data: Any) -> str:
    with pytest.raises(HandleError) as error:
        handle_from_bytes(data)
    assert isinstance(error.value, ValueError)
    return error.value.code


class Maker(Actor):
    """Makes and reads bytes in a proc."""

    @endpoint
    def make(self, handle: Any) -> bytes:
        return handle_bytes(handle)

    @endpoint
    def add(self, data: bytes, n: int) -> int:
        return handle_from_bytes(data).add.call_one(n).get(timeout=20)


def test_bytes_work_in_another_program() -> None:
    with this_host().spawn_procs({"gpus": 2}) as procs:
        adder = procs.spawn("adder", Adder)
        data = handle_bytes(adder)
        assert len(data) < 128 and data.decode().isascii() and data.decode().isprintable()
        assert elsewhere("print(*handle_from_bytes(data).add.call(2).get(timeout=20).values())", data) == ["2 2"]
        assert list(adder.add.call(1).get().values()) == [3, 3]


def test_each_kind_of_handle_has_bytes() -> None:
    port, receiver = Channel[int].open()
    with this_host().spawn_procs({"gpus": 2}) as procs:
        adder = procs.spawn("adder", Adder).slice(gpus=1)
        for handle in (adder, procs, this_host()):
            assert handle_from_bytes(handle_bytes(handle)) == handle
    assert elsewhere("handle_from_bytes(data).send(7)", handle_bytes(port)) == []
    assert receiver.recv().get(timeout=20) == 7


def test_procs_make_and_read_bytes() -> None:
    with this_host().spawn_procs({"gpus": 1}) as procs:
        adder, maker = procs.spawn("adder", Adder), this_host().spawn_procs().spawn("maker", Maker)
        data = maker.make.call_one(adder).get()
        assert maker.add.call_one(data, 1).get() == 1
        assert handle_from_bytes(data).add.call_one(1).get() == 2
        assert elsewhere("print(handle_from_bytes(data).add.call_one(1).get(timeout=20))", data) == ["3"]


def test_bytes_are_refused_after_their_end() -> None:
    data = handle_bytes(this_host(), expires_in=0.001)

    def code() -> str | None:
        try:
            handle_from_bytes(data)
        except HandleError as error:
            return error.code
        return None

    eventually("the bytes are refused", lambda: code() == "handle_expired")
    # A later ticket forgets the handle, and the answer stays the same.
    handle_bytes(this_host())
    assert elsewhere("print(code(data))", data) == ["handle_expired"]


def test_changed_bytes_are_refused() -> None:
    data = handle_bytes(this_host())
    assert refused(forged(data)) == "handle_unknown"
    assert elsewhere("print(code(data))", forged(data)) == ["handle_unknown"]


@pytest.mark.parametrize("cut", [0, 5, 9, 20, -1])
def test_incomplete_bytes_are_refused(cut: int) -> None:
    data = handle_bytes(this_host())
    assert refused(data[:cut]) == "handle_malformed"
    assert refused(data[:cut].decode()) == "handle_malformed"


def test_other_bytes_are_refused() -> None:
    data = handle_bytes(this_host())
    middle = b"A" if data[30:31] != b"A" else b"B"
    for other in (b"x", "é", b"monarch1.", b"monarch1.\xff", b"monarch2." + data[9:], data[:30] + middle + data[31:], data + b"AAAA"):
        assert refused(other) == "handle_malformed"


def test_client_that_ended_is_named() -> None:
    code = "from monarch.actor import *; print(handle_bytes(this_host().spawn_procs()).decode())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=28, check=True)
    assert refused(done.stdout.strip()) == "handle_client_lost"


def test_wrong_arguments_are_named() -> None:
    wrong: Any = 7
    with pytest.raises(TypeError, match="^handle_bytes: expected a mesh or a port, not int$"):
        handle_bytes(wrong)
    with pytest.raises(TypeError, match="^handle_from_bytes: expected bytes or a text, not int$"):
        handle_from_bytes(wrong)
    for seconds in (0, -1, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="^expires_in="):
            handle_bytes(this_host(), expires_in=seconds)


def test_event_loop_reads_bytes_without_warning() -> None:
    async def main() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return handle_from_bytes(handle_bytes(this_host()))

    assert asyncio.run(main()) == this_host()
