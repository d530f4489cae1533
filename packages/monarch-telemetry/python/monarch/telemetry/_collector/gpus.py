"""The GPUs of this host, from `nvidia-smi`, which comes with the driver: no library is needed."""

from __future__ import annotations

import csv
import shutil
import subprocess
from typing import NamedTuple

_PROGRAM = "nvidia-smi"
_COLUMNS = ("index", "name", "memory.total", "memory.used", "utilization.gpu")
_MIB = 1 << 20
# The most seconds of the program: its first run after a start of the machine loads the driver.
_MOST_SECONDS = 5.0
# Failures in a row after which the program is no longer run: a broken driver stays broken, a busy host does not stay busy.
_MOST_FAILURES = 3


class Gpu(NamedTuple):
    """One GPU; None for what the driver does not measure, as of one that is divided (MIG)."""

    number: int
    name: str
    memory_bytes: int | None
    used_bytes: int | None
    util_pct: float | None


class Gpus:
    """One thread."""

    def __init__(self) -> None:
        self._program = shutil.which(_PROGRAM)
        self._failures = 0

    def sample(self) -> list[Gpu]:
        """The GPUs as they are now; none where the host has none, or `nvidia-smi` does not answer."""
        if self._program is None:
            return []
        try:
            done = subprocess.run(
                [self._program, f"--query-gpu={','.join(_COLUMNS)}", "--format=csv,noheader,nounits"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                errors="replace",
                timeout=_MOST_SECONDS,
                check=True,
            )
            found = parsed(done.stdout)
        except (OSError, subprocess.SubprocessError, ValueError):
            self._failures += 1
            if self._failures >= _MOST_FAILURES:
                self._program = None
            return []
        self._failures = 0
        return found


def parsed(text: str) -> list[Gpu]:
    """The GPUs of the lines of `nvidia-smi`. `ValueError` for lines of another form."""
    found: list[Gpu] = []
    for line in csv.reader(text.splitlines(), skipinitialspace=True):
        if not line:
            continue
        if len(line) != len(_COLUMNS):
            raise ValueError(f"{len(line)} columns instead of {len(_COLUMNS)}: {line}")
        number, name, total, used, util = (word.strip() for word in line)
        found.append(Gpu(int(number), name, _mebibytes(total), _mebibytes(used), _number(util)))
    return found


def _mebibytes(word: str) -> int | None:
    number = _number(word)
    return None if number is None else int(number * _MIB)


def _number(word: str) -> float | None:
    """None for `[N/A]`, `[Not Supported]` and their like."""
    return None if word.startswith("[") else float(word)
