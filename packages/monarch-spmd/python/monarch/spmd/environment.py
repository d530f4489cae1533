"""The variables of a rank: those of torchrun, of which programs take their rank, their world and where to meet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class RankPlace:
    """A rank of a world whose hosts have equally many ranks each, numbered along the hosts: a mesh in row-major order."""

    rank: int
    world_size: int
    local_world_size: int

    def __post_init__(self) -> None:
        if self.local_world_size < 1 or self.world_size < 1 or self.world_size % self.local_world_size:
            raise ValueError(f"{self.world_size} ranks cannot be {self.local_world_size} on each host")
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank {self.rank} is none of {self.world_size}")

    @property
    def local_rank(self) -> int:
        return self.rank % self.local_world_size

    @property
    def group_rank(self) -> int:
        """The number of its host."""
        return self.rank // self.local_world_size

    @property
    def group_world_size(self) -> int:
        return self.world_size // self.local_world_size


class Attempt(NamedTuple):
    """What the ranks of an attempt have in common. `number` counts restarts, from 0."""

    run_id: str
    number: int = 0
    max_restarts: int = 0
    role: str = "rank"


def variables(
    place: RankPlace,
    master_addr: str,
    master_port: int,
    *,
    attempt: Attempt | None = None,
    error_file: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The variables by name. With an `attempt` those of an elastic launch too; `environ` is what the process has besides.

    `OMP_NUM_THREADS` is 1 where several ranks share a host and it is not set: each would use all processors.
    """
    found = {
        "MASTER_ADDR": master_addr,
        "MASTER_PORT": str(master_port),
        "RANK": str(place.rank),
        "LOCAL_RANK": str(place.local_rank),
        "WORLD_SIZE": str(place.world_size),
        "LOCAL_WORLD_SIZE": str(place.local_world_size),
        "GROUP_RANK": str(place.group_rank),
        "GROUP_WORLD_SIZE": str(place.group_world_size),
        "ROLE_RANK": str(place.rank),
        "ROLE_WORLD_SIZE": str(place.world_size),
        "ROLE_NAME": "rank" if attempt is None else attempt.role,
    }
    if attempt is not None:
        found |= {
            "TORCHELASTIC_RUN_ID": attempt.run_id,
            "TORCHELASTIC_RESTART_COUNT": str(attempt.number),
            "TORCHELASTIC_MAX_RESTARTS": str(attempt.max_restarts),
            "TORCHELASTIC_USE_AGENT_STORE": "False",
        }
        if error_file is not None:
            found["TORCHELASTIC_ERROR_FILE"] = error_file
    if place.local_world_size > 1 and "OMP_NUM_THREADS" not in (environ or {}):
        found["OMP_NUM_THREADS"] = "1"
    return found


def own_device(local_rank: int, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of `--virtual-local-rank`: the rank sees the GPU of its local rank alone, as device 0. `ValueError` if there are fewer.

    On ROCm, HIP_VISIBLE_DEVICES comes before CUDA_VISIBLE_DEVICES, which programs read all the same.
    """
    name = "HIP_VISIBLE_DEVICES" if environ.get("HIP_VISIBLE_DEVICES") else "CUDA_VISIBLE_DEVICES"
    visible = environ.get(name)
    devices = None if visible is None else visible.split(",")
    if devices is not None and local_rank >= len(devices):
        raise ValueError(f"--virtual-local-rank: local rank {local_rank} has no GPU in {name}={visible}")
    device = str(local_rank) if devices is None else devices[local_rank].strip()
    return {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": device, name: device}
