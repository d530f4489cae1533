"""The variables of ranks."""

from __future__ import annotations

import pytest

from monarch.spmd.environment import Attempt, RankPlace, own_device, variables


def test_ranks_are_numbered_along_the_hosts() -> None:
    found = [variables(RankPlace(rank, 6, 3), "10.0.0.1", 29500) for rank in range(6)]
    names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK")
    assert [tuple(int(one[name]) for name in names) for one in found] == [
        *((rank, rank, 0, rank) for rank in range(3)),
        *((rank, rank - 3, 1, rank) for rank in range(3, 6)),
    ]
    common = {
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
        "WORLD_SIZE": "6",
        "LOCAL_WORLD_SIZE": "3",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_WORLD_SIZE": "6",
        "ROLE_NAME": "rank",
        "OMP_NUM_THREADS": "1",
    }
    assert all(one == {**common, **{name: one[name] for name in names}} for one in found)


def test_attempt_has_the_variables_of_elastic_launches() -> None:
    attempt = Attempt("run-7", number=2, max_restarts=3, role="trainer")
    found = variables(RankPlace(0, 1, 1), "::1", 1, attempt=attempt, error_file="/tmp/error.json")
    elastic = {name: value for name, value in found.items() if name.startswith("TORCHELASTIC_")}
    assert elastic == {
        "TORCHELASTIC_RUN_ID": "run-7",
        "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_MAX_RESTARTS": "3",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_ERROR_FILE": "/tmp/error.json",
    }
    assert found["ROLE_NAME"] == "trainer" and "OMP_NUM_THREADS" not in found


def test_threads_that_are_set_stay() -> None:
    assert "OMP_NUM_THREADS" not in variables(RankPlace(1, 2, 2), "a", 1, environ={"OMP_NUM_THREADS": "8"})


@pytest.mark.parametrize(
    ("rank", "world", "local", "text"), [(2, 2, 1, "rank 2 is none of 2"), (0, 3, 2, "3 ranks cannot be 2"), (0, 2, 0, "2 ranks")]
)
def test_places_that_no_mesh_has(rank: int, world: int, local: int, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        RankPlace(rank, world, local)


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, {"CUDA_VISIBLE_DEVICES": "2"}),
        ({"CUDA_VISIBLE_DEVICES": "4,5, 6"}, {"CUDA_VISIBLE_DEVICES": "6"}),
        ({"HIP_VISIBLE_DEVICES": "1,2,3", "CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "3", "HIP_VISIBLE_DEVICES": "3"}),
    ],
)
def test_virtual_local_rank_sees_its_own_device(environ: dict[str, str], found: dict[str, str]) -> None:
    assert own_device(2, environ) == {"LOCAL_RANK": "0", **found}


def test_virtual_local_rank_needs_a_device() -> None:
    with pytest.raises(ValueError, match="local rank 2 has no GPU in CUDA_VISIBLE_DEVICES=0,1"):
        own_device(2, {"CUDA_VISIBLE_DEVICES": "0,1"})
