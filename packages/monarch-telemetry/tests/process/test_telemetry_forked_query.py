"""Telemetry in a fork of a program, and with arguments of other types: errors that name them."""

from __future__ import annotations

import telemetry_program

PROGRAM = """
import os, sys, warnings
import monarch.telemetry as telemetry
from monarch.actor import this_host

if __name__ == "__main__":
    running = telemetry.start()
    telemetry.query("SELECT 1 AS x")
    reads, writes = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid == 0:
        for ask in (telemetry.query, running.engine.query):
            try:
                ask("SELECT 1 AS x", timeout=2)
                os.write(writes, b"answered\\n")
            except RuntimeError as error:
                os.write(writes, b"forked\\n" if "was forked" in str(error) else b"other\\n")
        os._exit(0)
    os.waitpid(pid, 0)
    for line in os.read(reads, 100).split():
        print("=", line.decode())
    for wrong in ({"hosts": 7}, {"hosts": {"a": 7}}, {"config": 5}):
        try:
            telemetry.start(**wrong)
        except TypeError as error:
            print("=", str(error).partition(":")[0])
    running.stop().get()
"""


def test_fork_and_invalid_arguments_are_named() -> None:
    assert telemetry_program.shown(PROGRAM) == [
        *("forked", "forked", "start(hosts=7)", "start(hosts={'a'", "start(config=5)"),
    ]
