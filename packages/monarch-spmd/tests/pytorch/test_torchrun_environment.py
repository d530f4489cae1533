"""torchrun itself as the oracle of the variables of ranks: a program finds the same ones, with the same values."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from several_hosts import several_hosts

from monarch.actor import this_host
from monarch.spmd import run

# PyTorch takes seconds to import, and each rank of torchrun is below a process that does.
pytestmark = pytest.mark.timeout(120)
Program = Callable[[str], str]
Found = dict[str, dict[str, str]]
# Written by each attempt and rank. With restarts, rank 1 of the first attempt fails once all ranks have written their variables.
WRITES = """
import json, os, signal, sys
folder, restarts = sys.argv[1:]
count, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
with open(f"{folder}/{count}.{rank}.json", "w") as file:
    json.dump(dict(os.environ), file)
if restarts != "0" and count == "0":
    # A FIFO is opened when both ends are.
    if rank == "1":
        open(f"{folder}/fifo").close()
        sys.exit(3)
    open(f"{folder}/fifo", "w").close()
    signal.pause()
"""
# Prefixes of the variables with which launchers inform ranks; Python and others change more variables.
FAMILIES = ("MASTER_", "RANK", "LOCAL_", "WORLD_", "GROUP_", "ROLE_", "TORCH", "OMP_", "CUDA_", "HIP_", "NCCL_", "GLOO_", "PET_")
# These differ from one run to the next.
OWN = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE")
# Variables of torchrun alone: a choice for NCCL, and a message from its agent to its parts.
THEIRS = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCHELASTIC_SIGNALS_TO_HANDLE")


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of the launchers."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    # Otherwise the store of its agent is the ranks' as well, which have USE_AGENT_STORE then; Monarch has no agent of that kind.
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    return dict(os.environ)


def folder_of(place: Path, name: str) -> Path:
    folder = place / name
    folder.mkdir()
    os.mkfifo(folder / "fifo")
    return folder


def found(folder: Path, base: dict[str, str]) -> Found:
    """By attempt and rank, the variables that were set or changed."""
    by_rank: Found = {}
    for path in folder.glob("*.json"):
        variables: dict[str, str] = json.loads(path.read_text())
        by_rank[path.stem] = {name: value for name, value in variables.items() if name.startswith(FAMILIES) and base.get(name) != value}
    return by_rank


def torchrun(python: Path, *words: str) -> subprocess.Popen[str]:
    # The name of this machine is not looked up.
    argv = [str(python.with_name("torchrun")), "--local-addr=localhost", *words]
    return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def same(theirs: Found, ours: Found) -> None:
    assert set(ours) == set(theirs) and ours
    for key, variables in theirs.items():
        assert set(variables) - set(THEIRS) == set(ours[key])
        assert {name: value for name, value in variables.items() if name not in (*OWN, *THEIRS)} == {
            name: value for name, value in ours[key].items() if name not in OWN
        }


@pytest.mark.parametrize(
    ("options", "restarts", "attempts"),
    [
        (["--nproc-per-node=1"], 0, 1),
        (["--nproc-per-node=2", "--role=trainer", "--max-restarts=1"], 1, 2),
        (["--nproc-per-node=2", "--virtual-local-rank"], 0, 1),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_ranks_of_one_host(
    torch_python: Path, program: Program, folder: Path, base: dict[str, str], options: list[str], restarts: int, attempts: int
) -> None:
    script = program(WRITES)
    theirs, ours = folder_of(folder, "theirs"), folder_of(folder, "ours")
    agent = torchrun(torch_python, "--standalone", *options, script, str(theirs), str(restarts))
    out, _ = agent.communicate()
    assert agent.returncode == 0, out
    result = run(this_host(), ["torchrun", *options, script, str(ours), str(restarts)], workdir=str(folder)).result.get()
    assert result.attempts == attempts
    same(found(theirs, base), found(ours, base))


def test_ranks_of_two_hosts(torch_python: Path, program: Program, folder: Path, base: dict[str, str]) -> None:
    script = program(WRITES)
    theirs, ours = folder_of(folder, "theirs"), folder_of(folder, "ours")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--nnodes=2", "--nproc-per-node=2"]
    meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{port}", "--rdzv-id=r"]
    agents = [torchrun(torch_python, *options, *meeting, script, str(theirs), "0") for _ in range(2)]
    for agent in agents:
        out, _ = agent.communicate()
        assert agent.returncode == 0, out
    with several_hosts(2) as hosts:
        run(hosts.mesh, ["torchrun", *options, "--rdzv-id=r", script, str(ours), "0"], workdir=str(folder)).result.get()
    same(found(theirs, base), found(ours, base))


# Words that may be replaced by a value of a rank, and some that are not.
WORDS = (
    *(
        "$local_rank",
        "${local_rank}",
        "a=${local_rank}.$local_rank/",
        "$$",
        "$$local_rank",
        "$${local_rank}",
        "$$$local_rank",
        "$",
        "a$",
        "$1",
    ),
    *(
        "$LOCAL_RANK",
        "${Local_Rank}",
        "$local_ranks",
        "${local_rank",
        "{local_rank}",
        "$(local_rank)",
        "%(local_rank)s",
        "${ local_rank }",
        "",
    ),
    *(
        "${rank}",
        "$role_name",
        "${hostname}",
        "${restart_count}",
        "${run_id}",
        "${group_rank}",
        "${world_size}",
        "$local_rank\u00e9",
        "\\$local_rank",
    ),
)
WRITES_WORDS = "import json, os, sys\njson.dump(sys.argv, open(sys.argv[1] + '/' + os.environ['RANK'], 'w'))\n"


@pytest.mark.parametrize(
    "options",
    [["--virtual-local-rank", "words.$local_rank.py"], ["-m", "words_${local_rank}"], ["--no-python", "$local_rank"]],
    ids=["script", "module", "command"],
)
def test_local_rank_in_words(torch_python: Path, folder: Path, options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for local_rank in (0, 1):
        for name in (f"words.{local_rank}.py", f"words_{local_rank}.py"):
            (folder / name).write_text(WRITES_WORDS)
    # In a command, the name is no macro.
    (folder / "$local_rank").write_text(f"#!{torch_python}\n{WRITES_WORDS}")
    (folder / "$local_rank").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    theirs, ours = folder / "theirs", folder / "ours"
    for place in (theirs, ours):
        place.mkdir()
    agent = torchrun(torch_python, "--standalone", "--nproc-per-node=2", *options, str(theirs), *WORDS)
    out, _ = agent.communicate()
    assert agent.returncode == 0, out
    run(this_host(), ["torchrun", "--nproc-per-node=2", *options, str(ours), *WORDS], workdir=str(folder)).result.get()
    for rank in "01":
        expected, found = (json.loads((place / rank).read_text()) for place in (theirs, ours))
        assert expected[2:] != list(WORDS) and found[2:] == expected[2:] and os.path.basename(found[0]) == os.path.basename(expected[0])
