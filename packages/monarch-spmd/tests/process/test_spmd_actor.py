"""`SPMDActor` and the variables of living procs."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import Actor, ActorError, ProcMesh, endpoint, this_host
from monarch.spmd import AddrType, SPMDActor, setup_torch_elastic_env, setup_torch_elastic_env_async

Program = Callable[..., str]


class Environment(Actor):
    @endpoint
    def get(self, *names: str) -> list[str | None]:
        return [os.environ.get(name) for name in names]


@pytest.fixture
def procs() -> Iterator[ProcMesh]:
    made = this_host().spawn_procs({"gpus": 2})
    yield made
    made.stop().get()


def values(procs: ProcMesh, *names: str) -> list[list[str | None]]:
    return [found for _, found in procs.spawn("environment", Environment).get.call(*names).get()]


def test_variables_of_living_procs(procs: ProcMesh) -> None:
    setup_torch_elastic_env(procs)
    found = values(procs, "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    assert [one[:2] for one in found] == [["0", "2"], ["1", "2"]]
    assert found[0][2:] == found[1][2:] and found[0][2] == socket.gethostname()
    asyncio.run(_given(procs))
    assert values(procs, "MASTER_ADDR", "MASTER_PORT") == [["10.0.0.1", "29500"]] * 2


async def _given(procs: ProcMesh) -> None:
    await setup_torch_elastic_env_async(procs, "10.0.0.1", 29500)


def test_address_without_port(procs: ProcMesh) -> None:
    with pytest.raises(ValueError, match="master_addr without master_port"):
        setup_torch_elastic_env(procs, "10.0.0.1")
    with pytest.raises(ValueError, match="master_port without master_addr"):
        setup_torch_elastic_env(procs, master_port=1)


def test_address_of_a_kind(procs: ProcMesh) -> None:
    setup_torch_elastic_env(procs, use_ipaddr=AddrType.IPv4)
    address = values(procs, "MASTER_ADDR")[0][0]
    assert address is not None and socket.inet_pton(socket.AF_INET, address)


def test_script_as_main(procs: ProcMesh, program: Program, folder: Path) -> None:
    script = program(
        """
        import os, sys
        assert __name__ == "__main__"
        with open(sys.argv[1] + os.environ["RANK"], "w") as file:
            file.write(" ".join(sys.argv[1:]))
        sys.exit(0)
        """
    )
    ranks: Any = procs.spawn("_SPMDActor", SPMDActor)
    address, port = ranks.slice(gpus=0).get_host_port.call_one(None).get()
    assert [ok for _, ok in ranks.main.call(address, port, [script, str(folder / "out"), "b"]).get()] == [True, True]
    assert (folder / "out1").read_text() == f"{folder / 'out'} b"


@pytest.mark.parametrize(
    ("text", "words"),
    [("import sys; sys.exit(3)", "exited with code 3"), ("raise KeyError('k')", "KeyError: 'k'"), (None, "names a program")],
)
def test_failures_of_main(procs: ProcMesh, program: Program, text: str | None, words: str) -> None:
    ranks: Any = procs.spawn("_SPMDActor", SPMDActor)
    with pytest.raises(ActorError, match=words):
        ranks.main.call("127.0.0.1", 1, [] if text is None else [program(text)]).get()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("import signal; signal.signal(signal.SIGTERM, print)", "ValueError: signal only works in main thread"),
        (
            "import asyncio\nasync def main(): asyncio.get_running_loop().add_signal_handler(15, print)\nasyncio.run(main())",
            "RuntimeError: set_wakeup_fd only works in main thread",
        ),
    ],
)
def test_handler_of_a_signal_names_the_remedy(procs: ProcMesh, program: Program, text: str, error: str) -> None:
    ranks: Any = procs.spawn("_SPMDActor", SPMDActor)
    with pytest.raises(ActorError, match=error) as raised:
        ranks.main.call("127.0.0.1", 1, [program(text)]).get()
    assert "hint: SPMDActor.main runs the program on an actor's thread; monarch.spmd.run gives each rank a process" in str(raised.value)
    # A program that handles the error continues, and errors of Python itself have no hint.
    ranks.main.call("127.0.0.1", 1, [program(f"try:\n    exec({text!r})\nexcept Exception: pass")]).get()
    with pytest.raises(ActorError, match="ValueError: other") as raised:
        ranks.main.call("127.0.0.1", 1, [program("raise ValueError('other: only works in main thread')")]).get()
    assert "hint" not in str(raised.value)
