"""Processes of a mesh that differ in packages, code, variables or devices; and healthy ones that differ as hosts and ranks do."""

from __future__ import annotations

from typing import Any

import pytest
from support.made_up_waits import proc

from monarch.telemetry._diagnose.diagnosis import diagnosed
from monarch.telemetry._diagnose.registry import OWN
from monarch.telemetry._diagnose.snapshot import Host, Snapshot
from monarch.telemetry._diagnose.software import Software, software_of

PYTHON = {"python": "3.12.1"}


def job(*of_hosts: dict[str, Any], ranks: int = 2, per_rank: tuple[str, ...] = (), late: tuple[str, ...] = ()) -> Snapshot:
    """Each host has as many ranks with the same software; those in `per_rank` have one value for each rank, processes in `late` none."""
    procs, software = list[Any](), list[Software]()
    for number, given in enumerate(of_hosts):
        for local in range(ranks):
            uid = f"p{number}{local}"
            procs.append(proc(uid, number * ranks + local, ranks * len(of_hosts), "abcd"[number]))
            own: dict[str, Any] = {name: value[local] if name in per_rank else value for name, value in given.items()}
            software += [Software(uid)._replace(packages=PYTHON)._replace(**own)] if uid not in late else []
    return Snapshot(tuple(procs), (), tuple(Host("abcd"[number]) for number in range(len(of_hosts))), software=tuple(software))


def sentences(snapshot: Snapshot) -> list[str]:
    diagnosis = diagnosed(snapshot, OWN)
    assert not diagnosis.left_out, diagnosis.left_out
    return [cause.sentence for cause in diagnosis.causes]


def variables(**given: str) -> dict[str, Any]:
    return {"variables": given}


def packages(**given: str) -> dict[str, Any]:
    return {"packages": {**PYTHON, **given}}


def test_other_version_of_a_package_is_named() -> None:
    new, old = packages(torch="2.5", numpy="2.0"), packages(torch="2.4", numpy="1.26")
    assert sentences(job(new, old, new)) == ["host b runs numpy 1.26 where 2 hosts run 2.0 and 1 more packages differ"]


def test_two_hosts_with_other_versions_are_named() -> None:
    assert sentences(job(packages(torch="2.5"), packages(torch="2.4"))) == ["host b runs torch 2.4 where host a run 2.5"]


def test_package_that_was_not_loaded_is_no_difference() -> None:
    assert not sentences(job(packages(torch="2.5"), packages(), packages(torch="2.5")))


def test_other_code_of_one_host_is_named() -> None:
    new, old = {"code": {"train": "a1", "model": "b1"}}, {"code": {"train": "a2", "model": "b1"}}
    assert sentences(job(new, new, old)) == ["host c runs other code of train than 2 hosts"]


@pytest.mark.parametrize(
    "late, causes",
    [(("p00",), 1), (("p10", "p20"), 1), (("p00", "p10", "p20"), 1), (("p00", "p01"), 0), (("p20", "p21"), 0), (("p00", "p01", "p20"), 0)],
)
def test_process_without_answer_may_have_either_value(late: tuple[str, ...], causes: int) -> None:
    new, old = {"code": {"losses": "a1"}, **variables(NCCL_ALGO="Ring")}, {"code": {"losses": "a2"}, **variables(NCCL_ALGO="Tree")}
    found = sentences(job(new, old, new, late=late))
    assert found == ["host b runs other code of losses than 2 hosts"] * causes
    hosts = [variables(PYTHONPATH=f"/srv/{name}") for name in "abc"]
    assert not sentences(job(*hosts, late=late))


def test_host_without_processes_may_have_either_value() -> None:
    found = job(*({"code": {"losses": value}} for value in ("a1", "a2", "a1")))
    assert sentences(found) and not sentences(found._replace(procs=found.procs[2:]))


def test_rank_without_a_gpu_needs_most_answers() -> None:
    ranks: dict[str, Any] = {"variables": [{"CUDA_VISIBLE_DEVICES": "" if n == 1 else str(n)} for n in range(4)]}
    assert not sentences(job(ranks, ranks=4, per_rank=("variables",), late=("p02", "p03")))


@pytest.mark.parametrize(
    "others, odd, sentence",
    [
        ({"NCCL_ALGO": "Ring"}, {"NCCL_ALGO": "Tree"}, "host b has NCCL_ALGO='Tree' where 2 hosts have 'Ring'"),
        ({"NCCL_ALGO": "Ring"}, {}, "host b has no NCCL_ALGO, which 2 hosts have"),
        ({}, {"DATA": "#12345678"}, "host b has DATA, which 2 hosts do not have"),
        ({"DATA": "#1"}, {"DATA": "#2"}, "host b has another value of DATA than 2 hosts"),
    ],
)
def test_other_variable_of_one_host_is_named(others: dict[str, str], odd: dict[str, str], sentence: str) -> None:
    assert sentences(job(variables(**others), variables(**odd), variables(**others))) == [sentence]


def test_variables_of_hosts_and_ranks_are_no_difference() -> None:
    a = variables(NCCL_SOCKET_IFNAME="eth0", HOSTNAME="#1", DATA="#1", MONARCH_POD_UID="bf04")
    b = variables(NCCL_SOCKET_IFNAME="eth1", HOSTNAME="#2", DATA="#2", MONARCH_POD_UID="85f1")
    assert not sentences(job(a, b))
    assert not sentences(job(*(variables(OMP_NUM_THREADS="4", FOO=f"#{n}") for n in range(4))))
    ranks: dict[str, Any] = {"variables": [{"CUDA_VISIBLE_DEVICES": str(n), "RANK": f"#{n}"} for n in range(2)]}
    assert not sentences(job(ranks, ranks, per_rank=("variables",)))


def test_other_variable_of_one_rank_is_named() -> None:
    ranks: dict[str, Any] = {"variables": [{"OMP_NUM_THREADS": "64" if n == 2 else "1"} for n in range(4)]}
    assert sentences(job(ranks, ranks=4, per_rank=("variables",))) == [
        "workers rank 2 of 4 (pid 102) has OMP_NUM_THREADS='64' where 3 procs have '1'"
    ]


def test_rank_without_a_gpu_is_named() -> None:
    ranks: dict[str, Any] = {"variables": [{"CUDA_VISIBLE_DEVICES": "" if n == 1 else str(n)} for n in range(4)]}
    [sentence] = sentences(job(ranks, ranks=4, per_rank=("variables",)))
    assert sentence == "workers rank 1 of 4 (pid 101) has no GPU: CUDA_VISIBLE_DEVICES is empty, where 3 procs have one"


def test_ranks_that_all_lack_gpus_are_healthy() -> None:
    assert not sentences(job({"variables": {"CUDA_VISIBLE_DEVICES": ""}, "gpus": 0}, ranks=4))


def test_host_with_fewer_gpus_is_named() -> None:
    assert sentences(job({"gpus": 8}, {"gpus": 7}, {"gpus": 8})) == ["host b has 7 GPUs where 2 hosts have 8"]


@pytest.mark.parametrize("value", [None, 3, [], {"packages": 3}, {"packages": {1: 2}, "gpus": "x"}])
def test_malformed_software_is_empty(value: Any) -> None:
    assert software_of("p", {"software": value}) == Software("p")
