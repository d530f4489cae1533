"""Programs of ranks, and a run of them on this machine."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import this_host
from monarch.spmd import SPMDRun, run


@pytest.fixture
def program(folder: Path) -> Callable[[str], str]:
    """Writes a program; its path."""

    def written(text: str, name: str = "program.py") -> str:
        path = folder / name
        path.write_text(textwrap.dedent(text))
        return str(path)

    return written


@pytest.fixture
def start(folder: Path) -> Callable[..., SPMDRun]:
    """Starts a program on this host, with options of torchrun before it."""

    def started(*words: str, **arguments: Any) -> SPMDRun:
        return run(this_host(), ["torchrun", *words], workdir=str(folder), **arguments)

    return started
