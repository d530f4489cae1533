"""The processes of these tests have a folder of their own in place of the user's: they meet no other daemon and no other store."""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path

import pytest

# Modules that tests of several categories import.
sys.path.append(str(Path(__file__).parent))


@pytest.fixture(scope="session", autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory) -> Generator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MONARCH_HOME", str(tmp_path_factory.mktemp("home")))
        yield
