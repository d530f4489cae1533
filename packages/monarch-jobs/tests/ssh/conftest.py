"""Hosts with a real sshd each."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.project import ROOT
from tools.sshd.hosts import SshHosts, missing


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
