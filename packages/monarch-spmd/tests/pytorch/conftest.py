"""PyTorch for the programs of ranks: from an environment of its own, whose packages the interpreter of the tests imports as well."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import side_venv


@pytest.fixture(scope="session")
def torch_python() -> Path:
    """The interpreter of the environment; skips where there is none."""
    python = side_venv.existing("torch")
    if python is None:
        pytest.skip("python -m tools.side_venv torch")
    return python


@pytest.fixture(scope="session")
def torch_env(torch_python: Path) -> dict[str, str]:
    """What a rank needs in its environment to import PyTorch."""
    return {"PYTHONPATH": str(side_venv.site_packages(torch_python))}
