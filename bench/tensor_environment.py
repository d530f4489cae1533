"""Ends `bench/tensor.py` where there is no PyTorch: imported before what imports it."""

from __future__ import annotations

from requirement import module, require

require(module("torch", "python -m tools.side_venv torch, then python -m tools.with_torch python bench/tensor.py"))
