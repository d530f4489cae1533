"""The part of a node that a job takes."""

from __future__ import annotations

import pytest

from monarch.job._slurm.sharing import NodeSize, Share, from_sinfo, share


def test_the_smallest_node_counts() -> None:
    text = "96|1031000+|gpu:a100:8(S:0-1),nvme:2\n128+|515000|gpu:4\n\ngarbage\n"
    assert from_sinfo(text) == NodeSize(96, 515000, 4)
    assert from_sinfo("64|256000|(null)\n") == NodeSize(64, 256000, 0)
    assert from_sinfo("") is None and from_sinfo("a|b|c\n") is None


def test_the_part_is_that_of_the_gpus() -> None:
    assert share(NodeSize(96, 960_000, 8), 2, 1) == Share(12, "240000M", 2)
    assert share(NodeSize(96, 960_000, 8), 1, 8) == Share(96, "960000M", 8)


def test_without_gpus_each_task_has_a_cpu() -> None:
    assert share(NodeSize(64, 256_000, 0), 16, 0) == Share(1, "64000M", None)


@pytest.mark.parametrize(("tasks", "gpus"), [(2, 5), (9, 1), (97, 0)])
def test_what_does_not_fit(tasks: int, gpus: int) -> None:
    with pytest.raises(ValueError, match="do not fit: nodes have 96 cpus and 8 GPUs"):
        share(NodeSize(96, 960_000, 8), tasks, gpus)
