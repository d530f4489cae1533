"""What a source compares when the memory of a tensor is another one."""

from __future__ import annotations

import numpy as np
import pytest

from monarch.rdma.weights import Box
from monarch.rdma.weights.local_tensor import local_tensors
from monarch.rdma.weights.memories import unchanged

PART = Box((2, 0), (2, 3), (4, 3))
STATE = {"bias": np.zeros(3), "weight": (np.zeros((2, 3), np.float32), PART), "step": np.zeros((), np.int64), "empty": np.zeros((0, 2))}


def test_other_memory_of_one_layout_is_unchanged():
    again = {
        "bias": np.zeros(3),
        "weight": (np.zeros((3, 2), np.float32).T, PART),
        "step": np.ones((), np.int64),
        "empty": np.zeros((0, 2)),
    }
    now = local_tensors(again)
    assert unchanged(local_tensors(STATE), now) is now


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"bias": np.zeros(4)}, "tensor 'bias' has another layout"),
        ({"bias": np.zeros(3, np.float32)}, "tensor 'bias' has another layout"),
        ({"weight": (np.zeros((2, 3), np.float32), Box((0, 0), (2, 3), (4, 3)))}, "tensor 'weight' has another layout"),
        ({"step": np.zeros((1, 1, 1), np.int64)}, "tensor 'step' has another layout"),
        ({"empty": np.zeros((0, 3))}, "tensor 'empty' has another layout"),
        ({"more": np.zeros(1)}, "the state dict had 4 tensors at publish, and has 5"),
    ],
)
def test_other_layout_is_refused(change, text):
    with pytest.raises(ValueError, match=text):
        unchanged(local_tensors(STATE), local_tensors(STATE | change))
