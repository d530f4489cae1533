"""A run of a program on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import this_host
from monarch.spmd import SPMDRun, run


@pytest.fixture
def start(folder: Path) -> Callable[..., SPMDRun]:
    """Starts a program on this host, with options of torchrun before it."""

    def started(*words: str, **arguments: Any) -> SPMDRun:
        return run(this_host(), ["torchrun", *words], workdir=str(folder), **arguments)

    return started
