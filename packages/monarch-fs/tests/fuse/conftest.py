"""The source of the tests of the daemon; tests of mounts have a directory in its place."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from fs_daemon_source import Source

from monarch.fs._tree.operations import DEVICE, PYFUSE3


@pytest.fixture(params=[DEVICE, PYFUSE3])
def back_end(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the servers of `fs_memory_tree` and `fs_real_tree` serve with."""
    if request.param == PYFUSE3:
        pytest.importorskip("pyfuse3")
    monkeypatch.setenv("BACKEND", request.param)
    return request.param


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Source]:
    """Each test has a daemon of its own."""
    monkeypatch.setenv("MONARCH_HOME", str(tmp_path / "home"))
    made = Source(tmp_path)
    try:
        yield made
    finally:
        made.stop()
