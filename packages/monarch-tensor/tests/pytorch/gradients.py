"""Gradients of `monarch.tensor._autograd.grad` beside those of `torch.autograd`, for its tests."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from monarch.tensor._autograd.grad import grad_generator

VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])
incremental = pytest.mark.skipif(VERSION < (2, 5), reason="the engine computes all gradients at once before torch 2.5")


def leaf(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


def check(roots: Any, tensors: Any, grad_roots: Any = ()) -> None:
    """The gradients by `torch.autograd.grad`, then those of the generator."""
    root_list = [roots] if isinstance(roots, torch.Tensor) else list(roots)
    given_grads = list(grad_roots) or [None] * len(root_list)
    expected = torch.autograd.grad(root_list, tensors, given_grads, retain_graph=True, allow_unused=True)
    found = list(grad_generator(roots, tensors, grad_roots))
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            torch.testing.assert_close(one, other)
            assert not one.requires_grad
