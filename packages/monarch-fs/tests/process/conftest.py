"""What tests of pushes have in common: a store and a home of their own, and the entry points that hosts need."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from fs_push_hosts import declare_push

from monarch.config import reload_config_from_env


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return declare_push(tmp_path_factory.mktemp("entries"), "monarch.fs._settings")


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path) -> Generator[None]:
    """The settings of this process are read from the environment once: they are read again after both changes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MONARCH_FS_STORE_DIR", str(tmp_path / "store"))
        patch.setenv("MONARCH_HOME", str(tmp_path / "home"))
        reload_config_from_env()
        yield
    reload_config_from_env()
