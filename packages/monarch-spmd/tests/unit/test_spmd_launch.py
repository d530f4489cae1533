"""Command lines as launches, and what of the output of a rank is shown."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from monarch.actor import ExitReason
from monarch.spmd import LaunchArgumentError, LaunchSpec, RankFailure, SPMDFailure, parse_torchrun
from monarch.spmd.launch import launch_of, on_one_host


@pytest.mark.parametrize(
    ("command", "spec"),
    [
        (["python", "a.py", "x"], LaunchSpec("a.py", ("x",), has_macros=False)),
        (["/usr/bin/python3.11", "-u", "-m", "pkg", "x"], LaunchSpec("pkg", ("x",), kind="module", has_macros=False)),
        (["python", "-c", "print()"], LaunchSpec("python", ("-c", "print()"), kind="command", has_macros=False)),
        (["a.py", "x"], LaunchSpec("a.py", ("x",), has_macros=False)),
        (["-m", "pkg"], LaunchSpec("pkg", kind="module", has_macros=False)),
        (["./solver", "-n", "3"], LaunchSpec("./solver", ("-n", "3"), kind="command", has_macros=False)),
        (["torchrun", "--nproc-per-node=2", "a.py"], LaunchSpec("a.py", per_host=2)),
        (["/opt/bin/torchrun", "a.py"], LaunchSpec("a.py")),
        (["python", "-m", "torch.distributed.run", "--nproc-per-node=2", "a.py"], LaunchSpec("a.py", per_host=2)),
    ],
)
def test_commands(command: list[str], spec: LaunchSpec) -> None:
    assert launch_of(command) == spec


@pytest.mark.parametrize(
    ("command", "error", "text"),
    [
        ("torchrun a.py", TypeError, "expected a list of words"),
        ([], ValueError, "a launch names a program"),
        ([""], ValueError, "a launch names a program"),
        (["a\0.py"], ValueError, "null character"),
        (["torchrun", 4], TypeError, "expected a list of words"),
        (["torchrun", "--nproc-per-nod", "2", "--bad=1"], LaunchArgumentError, "--bad: no such option here"),
        (["python", "-m"], LaunchArgumentError, "-m: a module is missing"),
    ],
)
def test_invalid_command_is_refused(command: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        launch_of(command)


def test_world_of_several_hosts_fits_on_one() -> None:
    spec = on_one_host(parse_torchrun(["--nnodes=3", "--nproc-per-node=2", "--master-addr=far", "--master-port=1", "a.py"]), 6)
    assert spec == LaunchSpec("a.py", per_host=6)


@pytest.mark.parametrize(
    ("options", "visible"),
    [
        ([], [(0, 1), (0, 2), (1, 1), (1, 2)]),
        (["-r", "3"], []),
        (["-r", "1"], [(0, 2), (1, 2)]),
        (["-r", "3", "-t", "0:2"], [(0, 2)]),
        (["--redirects", "1:3"], [(0, 1), (0, 2)]),
        (["--local-ranks-filter", "1"], [(1, 1), (1, 2)]),
    ],
)
def test_output_that_is_shown(options: list[str], visible: list[tuple[int, int]]) -> None:
    spec = parse_torchrun([*options, "a.py"])
    assert [(rank, stream) for rank in (0, 1) for stream in (1, 2) if spec.shows(rank, stream)] == visible


def test_failure_survives_pickle() -> None:
    rank = RankFailure(3, "hosts=0, gpus=3", "host-7", 4121, "exception", ExitReason("exit_code", code=1), 1, 5.0, "ValueError: no")
    failure = SPMDFailure([rank, rank._replace(rank=5)], attempt=1, attempts=3, consequences=2, record="failure.json")
    found = pickle.loads(pickle.dumps(failure))
    assert str(found) == str(failure) and (found.rank, found.exitcode, found.code) == (3, 1, "spmd_run_failed")
    lines = str(failure).split("\n")
    assert lines[0] == "rank 3 (hosts=0, gpus=3, host-7, pid 4121) raised ValueError: no"
    assert lines[1] == "  attempt 2 of 3"
    assert lines[2:4] == ["  1 more rank failed: 5", "  2 ranks were ended in consequence"]
