"""PyTorch, from an environment of its own."""

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
