"""How much of a node a job takes that shares it: cpus and memory in proportion to its GPUs, from what sinfo says about the partition."""

from __future__ import annotations

import re
from typing import NamedTuple

SINFO_FORMAT = "%c|%m|%G"


class NodeSize(NamedTuple):
    """What every node of a partition has at least."""

    cpus: int
    memory_mb: int
    gpus: int


def from_sinfo(text: str) -> NodeSize | None:
    """The smallest node among lines of `SINFO_FORMAT`; None where no line is one. `+` after a number means "at least"."""
    sizes: list[NodeSize] = []
    for line in text.splitlines():
        words = line.strip().split("|")
        numbers = [re.match(r"\d+", word) for word in words[:2]]
        if len(words) == 3 and numbers[0] and numbers[1]:
            sizes.append(NodeSize(int(numbers[0][0]), int(numbers[1][0]), _gpus(words[2])))
    return NodeSize(*(min(size[index] for size in sizes) for index in range(3))) if sizes else None


def _gpus(gres: str) -> int:
    """GPUs in `gpu:a100:8(S:0-1),nvme:2`, of any vendor and model."""
    words = re.sub(r"\([^)]*\)", "", gres).split(",")
    return sum(int(found[1]) for word in words if (found := re.fullmatch(r"gpu(?::[^:]+)?:(\d+)", word.strip())))


class Share(NamedTuple):
    """What sbatch is asked for, for each node."""

    cpus_per_task: int
    mem: str
    gpus_per_node: int | None


def share(size: NodeSize, tasks_per_node: int, gpus_per_task: int) -> Share:
    """The part of a node for `tasks_per_node` tasks; `ValueError` where a node has not that many GPUs or cpus.

    With GPUs the part is that of the GPUs. Without, each task gets one cpu, and memory in proportion.
    """
    gpus = tasks_per_node * gpus_per_task
    if gpus > size.gpus or tasks_per_node > size.cpus:
        raise ValueError(
            f"{tasks_per_node} tasks with {gpus_per_task} GPUs each do not fit: nodes have {size.cpus} cpus and {size.gpus} GPUs"
        )
    cpus = max(1, size.cpus * gpus // size.gpus // tasks_per_node) if gpus else 1
    memory = size.memory_mb * gpus // size.gpus if gpus else size.memory_mb * tasks_per_node // size.cpus
    return Share(cpus, f"{memory}M", gpus or None)
