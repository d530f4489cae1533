"""Copies of states from other hosts: their size is the one that was saved."""

from __future__ import annotations

import pytest

from monarch.spmd import SPMDError
from monarch.spmd.snapshot_file import SnapshotFile
from monarch.spmd.snapshot_memory import Offer, pull


@pytest.mark.parametrize("nbytes", [0, 99, 101, 1 << 50])
def test_state_of_another_size_is_refused(nbytes: int) -> None:
    file = SnapshotFile()
    with pytest.raises(SPMDError, match="are offered for a state of 100 bytes"):
        pull(Offer(b"i" * 16, 1, 2, nbytes, "machine"), file, 100)
    assert file.nbytes == 0
