"""What tests of pushes have in common: a store and a home of their own, and the entry points that hosts need."""

from __future__ import annotations

from pathlib import Path

import pytest
from fs_push_hosts import declare_push


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return declare_push(tmp_path_factory.mktemp("entries"), "monarch.fs._settings")


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONARCH_FS_STORE_DIR", str(tmp_path / "store"))
    monkeypatch.setenv("MONARCH_HOME", str(tmp_path / "home"))
