"""Hosts with a real sshd each."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import monarch.actor
from tools.project import ROOT
from tools.sshd.hosts import SshHosts, missing


@pytest.fixture(scope="session", autouse=True)
def failures_do_not_end_pytest() -> None:
    """A failure may reach the root after the test that wanted it is over."""
    # The hook is never restored: the last test's failure may come when pytest is done.
    monarch.actor.unhandled_fault_hook = lambda failure: None


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshHosts]:
    """Two hosts of the test's own, which it may kill."""
    if lacking := missing():
        pytest.skip(lacking)
    monkeypatch.setenv("MONARCH_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    sources = [str(ROOT / "packages" / name / "python") for name in ("monarch-core", "monarch-jobs")]
    environment = {"PYTHONPATH": ":".join([*sources, *filter(None, [os.environ.get("PYTHONPATH")])]), "TMPDIR": str(tmp_path)}
    # The sockets of ssh's connections need a short path; a test sees only its own.
    with tempfile.TemporaryDirectory(prefix="mt-") as short, SshHosts(tmp_path / "sshd", ("h0", "h1"), env=environment) as found:
        monkeypatch.setattr("tempfile.tempdir", short)
        yield found
