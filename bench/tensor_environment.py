"""Ends `bench/tensor.py` if there is no PyTorch. It is imported before the modules that import PyTorch."""

from __future__ import annotations

from requirement import module, require

require(module("torch", "python -m tools.side_venv torch, then python -m tools.with_torch python bench/tensor.py"))
