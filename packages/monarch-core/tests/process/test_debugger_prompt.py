"""The prompt of the debugger: ranks, input of every kind, one client at a time."""

from __future__ import annotations

import socket

import pytest
from debugged_actors import PDB, PROMPT, DebugLine, Worker, ranks_of, sessions

from monarch.actor import this_host


@pytest.fixture(scope="module")
def procs(debug_server):
    with this_host().spawn_procs({"hosts": 2, "gpus": 2}) as mesh:
        yield mesh


@pytest.fixture(scope="module")
def stopped(procs, debug_server):
    """Four ranks at a breakpoint, for all tests."""
    result = procs.spawn("stopped", Worker).step.call(0)
    sessions(4)
    yield
    with DebugLine(debug_server) as made:
        made.ask("continue")
    assert list(result.get().values()) == [0, 2, 4, 6]


# ---- cast


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ("2", [2]),
        ("0,3", [0, 3]),
        ("3, 0, 3", [0, 3]),
        (":", [0, 1, 2, 3]),
        ("1:", [1, 2, 3]),
        (":2", [0, 1]),
        ("::2", [0, 2]),
        ("1:4:2", [1, 3]),
        ("hosts=1", [2, 3]),
        ("gpus=0", [0, 2]),
        ("hosts=0, gpus=1", [1]),
        ("gpus=(0, 1), hosts=0:1", [0, 1]),
        ("hosts=:", [0, 1, 2, 3]),
    ],
)
def test_cast(stopped, debug_line, spec, wanted):
    text = debug_line.ask(f"cast stopped ranks({spec}) p y * 1000")
    assert text.splitlines() == [f"[{rank}] {rank * 1000}" for rank in wanted]


def test_cast_moves_all(stopped, procs, debug_line):
    result = procs.spawn("moved", Worker).step.call(0)
    sessions(8)
    for _ in range(2):
        debug_line.ask("cast moved ranks(:2) n")
    lines = {info.rank: info.lineno for info in sessions() if info.actor_name == "moved"}
    assert lines[0] == lines[1] > lines[2] == lines[3]
    text = debug_line.ask("cast moved ranks(0,1) c")
    assert "[0] is over\n" in text
    assert "[1] is over\n" in text
    assert debug_line.ask("cast moved ranks(0,2) p 'still'") == "No debug session for rank 0 for actor moved\n[2] 'still'\n"
    debug_line.ask("cast moved ranks(:) c")
    assert list(result.get().values()) == [0, 2, 4, 6]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("attach", "Error parsing input: expected: attach <actor> <rank>"),
        ("attach stopped", "Error parsing input: expected: attach <actor> <rank>"),
        ("attach stopped 1 2", "Error parsing input: expected: attach <actor> <rank>"),
        ("attach stopped x", "Error parsing input: expected a number"),
        ("attach stopped -1", "Error parsing input: expected a number"),
        ("attach sto.pped 1", "Error parsing input: 'sto.pped' is no name"),
        ("attach nobody 1", "No debug sessions for actor nobody"),
        ("attach stopped 4", "No debug session for rank 4 for actor stopped"),
        ("attach stopped 99999999999999999999999", "Error parsing input: expected a number"),
        ("list all", "Error parsing input: list takes no arguments"),
        ("detach", "Error parsing input: no command 'detach'"),
        ("n", "Error parsing input: no command 'n'"),
        ("cast", "Error parsing input: expected: cast"),
        ("cast stopped n", "Error parsing input: expected: cast"),
        ("cast stopped ranks n", "Error parsing input: expected: cast"),
        ("cast stopped ranks(1 n", "Error parsing input: expected: cast"),
        ("cast stopped ranks(1)", "Error parsing input: there is no pdb command"),
        ("cast stopped ranks() n", "Error parsing input: ranks() names no rank"),
        ("cast stopped ranks(1,) n", "Error parsing input: expected a number"),
        ("cast stopped ranks(1:2:3:4) n", "Error parsing input: expected start:stop:step"),
        ("cast stopped ranks(::0) n", "Error parsing input: the step of '::0' is 0"),
        ("cast stopped ranks(racks=1) n", "Error parsing input: no dimension 'racks', only 'hosts', 'gpus'"),
        ("cast stopped ranks(gpus=1, gpus=2) n", "Error parsing input: dimension 'gpus' is there twice"),
        ("cast stopped ranks(gpus=) n", "Error parsing input: expected a number"),
        ("cast nobody ranks(1) n", "No debug sessions for actor nobody"),
        ("cast stopped ranks(7) n", "No debug session for rank 7 for actor stopped"),
        ("cast stopped ranks(7:) n", "No debug session for these ranks for actor stopped"),
        ("\x00\x01\x02", "Error parsing input: no command"),
        ("\N{SNOWMAN}", "Error parsing input: no command '\N{SNOWMAN}'"),
    ],
)
def test_bad_input(stopped, debug_line, text, answer):
    assert debug_line.ask(text).startswith(answer)


def test_malformed_or_endless_input_is_refused(stopped, debug_line):
    debug_line.socket.sendall(b"\xff\xfe\n")
    assert "Error parsing input: no command" in debug_line.until(PROMPT)
    assert debug_line.ask("\r") == debug_line.ask("  ") == debug_line.ask("") == ""
    debug_line.socket.sendall(b"x" * 200_000 + b"\nquit\n")
    assert "Error parsing input: the line is too long\n" in debug_line.rest()


def test_help_and_quit(debug_server):
    with DebugLine(debug_server) as made:
        assert all(word in made.ask("h") for word in ("list", "attach", "cast", "continue", "quit", "detach"))
        made.send("q")
        assert made.rest() == ""


# ---- one client at a time


def test_new_client_takes_over_the_prompt(stopped, debug_server):
    with DebugLine(debug_server) as old, DebugLine(debug_server) as new:
        assert "Another client has taken over." in old.rest()
        assert ranks_of(new.ask("list")) == [0, 1, 2, 3]


def test_new_client_takes_over_in_pdb(stopped, debug_server):
    with DebugLine(debug_server) as old:
        old.ask("attach stopped 0", PDB)
        with DebugLine(debug_server) as new:
            assert "Another client has taken over." in old.rest()
            new.ask("attach stopped 0", PDB)
            assert new.ask("p y", PDB) == "0\n"


@pytest.mark.parametrize("how", ["close", "reset", "half"])
def test_departure_of_a_client_keeps_pdb_unchanged(stopped, debug_server, how):
    made = DebugLine(debug_server)
    made.ask("attach stopped 1", PDB)
    if how == "reset":
        made.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    if how == "half":
        made.send("p 'last words'")
        made.socket.shutdown(socket.SHUT_WR)
        assert "'last words'" in made.rest()
    made.close()
    with DebugLine(debug_server) as new:
        assert ranks_of(new.ask("list")) == [0, 1, 2, 3]
        new.ask("attach stopped 1", PDB)
        assert new.ask("p y", PDB) == "1\n"


def test_input_in_one_piece_is_taken_in_order(stopped, procs, debug_server):
    result = procs.slice(hosts=0, gpus=0).spawn("piped", Worker).step.call_one(3)
    sessions(5)
    with DebugLine(debug_server) as made:
        made.socket.sendall(b"attach piped 0\np x\nn\np y\ndetach\nattach piped 0\nc\nlist\n")
        made.socket.shutdown(socket.SHUT_WR)
        text = made.rest()
    order = [text.index(word) for word in ("Attached", "3\n", "Detached from piped", "is over", "coordinates")]
    assert order == sorted(order)
    assert result.get() == 6
