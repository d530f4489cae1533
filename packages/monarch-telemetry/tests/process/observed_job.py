"""Looks of a program at its own job. `telemetry_program` puts this module beside each program."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import monarch.telemetry as telemetry


def rows(sql: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in telemetry.query(sql).to_pylist()]


def until(sql: str, wanted: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    # Rows of other processes come soon. The time limit of the test ends a wait for rows that never come.
    while (found := rows(sql)) != wanted:  # polls: rows come with a look
        continue
    return found


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    # A thread of it has to run to take the signal, which others may precede on a busy machine.
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":  # polls: the kernel reports it to the parent only
        continue
