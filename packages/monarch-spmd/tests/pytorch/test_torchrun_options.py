"""torchrun itself as the oracle of our parser: both accept the same command lines, and understand the same by them."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from monarch.spmd import LaunchArgumentError, LaunchSpec, parse_torchrun
from monarch.spmd.torchrun import OPTIONS

ORACLE = Path(__file__).with_name("torchrun_oracle.py")
Case = tuple[list[str], dict[str, str]]
pytestmark = pytest.mark.timeout(120)  # PyTorch takes seconds to import

# Values that an option may have, and others.
VALUES: dict[str, tuple[str, ...]] = {
    "nnodes": ("1", "3", "2:4", "2:2", " 2", "+2", "1_0", "0", "-1", "4:2", "0:1", "1:2:3", "2:", ":2", "x", "1.0", ""),
    "nproc-per-node": ("1", "8", " 2 ", "1_2", "cpu", "auto", "gpu", "xpu", "CPU", "1.5", "all", ""),
    "max-restarts": ("0", "3", "+1", "1_0", "-1", "1.5", "x", ""),
    "role": ("trainer", "a b", "", "-1", "-1.5", "a=b"),
    "rdzv-id": ("run-7", "a/b", "none"),
    "master-addr": ("10.0.0.1", "::1", "[::1]", "node-0"),
    "master-port": ("0", "29501", "65535", " 80", "x", "1.0", ""),
    "local-addr": ("127.0.0.1", "::1"),
    "log-dir": ("logs", "logs/of run"),
    "redirects": ("0", "1", "2", "3", "0:1", "0:3,1:0", "0:1,0:2", "4", "-1", "03", "0:4", "0:1;1:1", "0:1,", ",0:1", "0:", "x", ""),
    "tee": ("0", "3", "1:3", "1:3,2:1", "5", "1:5", "1:3,", ""),
    "local-ranks-filter": ("0", "0,2", " 1, 2", "1,1", "", "x", "0,", ",", "0;1", "0:1"),
    "rdzv-backend": ("static", "c10d", ""),
    "rdzv-endpoint": ("host:29400", "host", ""),
    "rdzv-conf": ("", "a=1", "a=1,b=2", " a = 1 , b = c=d ", "a", "a=", "=1", "a=1,", ","),
    "node-rank": ("0", "3", "x", "1.5", ""),
    "monitor-interval": ("1", ".5", "1e3", "x", ""),
    "start-method": ("spawn", "fork", "forkserver", "thread", ""),
    "event-log-handler": ("null", "console"),
    "log-line-prefix-template": ("${rank}: ", ""),
    "duplicate-stdout-filters": ("a", "a,b,,c", ""),
    "duplicate-stderr-filters": ("a,b",),
    "logs-specs": (),
    "numa-binding": ("node", "socket", "exclusive", "core-complex", "all", ""),
    "signals-to-handle": ("SIGTERM", "SIGTERM,SIGUSR1"),
    "shutdown-timeout": ("0", "30", "-1", "1.5", "x", ""),
}
FLAGS = ("standalone", "module", "no-python", "run-path", "virtual-local-rank")
LETTERS = {"redirects": "-r", "tee": "-t", "module": "-m"}
# Options that Monarch treats differently, and the reasons.
DIFFERENT: dict[tuple[str, ...], str] = {
    ("--nproc-per-node=0",): "torchrun refuses it when it starts",
    ("--nproc-per-node=-1",): "torchrun refuses it when it starts",
    ("--master-port=65536",): "no port; torchrun refuses it when it starts",
    ("--master-port=-1",): "no port; torchrun refuses it when it starts",
    ("--local-ranks-filter=-1",): "torchrun shows nothing then",
    ("--redirects=11:2",): "torchrun has local ranks of one digit only",
    ("--node-rank=-1",): "torchrun refuses it when it starts",
    ("--monitor-interval=-1",): "no interval",
    ("--monitor-interval=nan",): "no interval",
    ("--logs-specs=mine",): "torchrun looks for a plug-in; output is ours",
    ("--nproc-per_node=2",): "a name may have dashes and underscores here",
    ("--virtual-local_rank",): "a name may have dashes and underscores here",
}
MORE: tuple[tuple[str, ...], ...] = (
    (),
    ("-",),
    ("--standalone", "--nnodes=2"),
    ("--nnodes=2", "--nnodes", "3"),
    ("-m", "--no-python"),
    ("--run-path", "--no-python"),
    ("--run-path", "-m"),
    ("-mr", "3"),
    ("-mr3",),
    ("-mt", "1", "-r2"),
    ("-mx",),
    ("-r",),
    ("-r=",),
    ("-x",),
    ("--unknown",),
    ("--unknown=3",),
    ("--standalone=1",),
    ("--standalone=",),
    ("--role", "--standalone"),
    ("--role", "-r"),
    ("--role", "-r3"),
    ("--role", "-x"),
    ("--role", "-x y"),
    ("--role", "-r y"),
    ("--role", "--log-dir=a b"),
    ("--role", "--log-d=a b"),
    ("--role", "--unknown=a b"),
    ("--role", "-"),
    ("--role", ""),
    ("--log-dir", "logs", "--role=x", "-t", "3"),
    ("--max-restarts", "-1"),
    ("--print-completion=basic",),
)
# Programs with arguments, without options before them.
PROGRAMS = (
    ("a.py", "--lr", "0.1"),
    ("a.py", "--nnodes=5", "-m"),
    ("a.py", "--", "x"),
    ("a.py", "--", "--", "x"),
    ("a.py", "x", "--", "y"),
    ("--", "a.py", "--", "x"),
    ("--", "-odd.py", "--", "-m"),
    ("--standalone", "--", "a.py"),
    ("-", "x"),
    ("-7", "x"),
    ("-odd name.py", "x"),
    ("", "x"),
    ("--role", "--", "a.py"),
)
VARIABLES: tuple[dict[str, str], ...] = (
    {"PET_NNODES": "2"},
    {"PET_NNODES": ""},
    {"PET_NNODES": "x"},
    {"PET_nnodes": "x"},
    {"PET_NPROC_PER_NODE": "3"},
    {"PET_NPROC-PER-NODE": "x"},
    {"PET_ROLE": ""},
    {"PET_MASTER_PORT": ""},
    {"PET_MAX_RESTARTS": "2", "PET_RDZV_ID": "a"},
    {"PET_MAX_RESTARTS": "two"},
    {"PET_REDIRECTS": "3", "PET_TEE": "0:1"},
    {"PET_R": "x"},
    {"PET_STANDALONE": "1"},
    {"PET_STANDALONE": "0"},
    {"PET_STANDALONE": "00"},
    {"PET_STANDALONE": "2"},
    {"PET_STANDALONE": ""},
    {"PET_STANDALONE": "yes"},
    {"PET_MODULE": "1"},
    {"PET_NO_PYTHON": "1", "PET_MODULE": "1"},
    {"PET_RUN_PATH": "1", "PET_VIRTUAL_LOCAL_RANK": "1"},
    {"PET_LOGS_SPECS": "x", "PET_NUMA_BINDING": "x"},
    {"PET_LOCAL_RANKS_FILTER": "1,2", "PET_LOG_DIR": "logs"},
    {"PET_SHUTDOWN_TIMEOUT": "7"},
    {"PET_UNKNOWN": "1", "NNODES": "7"},
)


def spellings(name: str) -> list[str]:
    return list(dict.fromkeys((f"--{name}", f"--{name.replace('-', '_')}")))


def with_values(name: str) -> list[Case]:
    cases: list[Case] = []
    for value in VALUES[name]:
        cases += [([word, value, "a.py"], {}) for word in spellings(name)]
        cases += [([f"{word}={value}", "a.py", "--x"], {}) for word in spellings(name)]
        if name in LETTERS:
            cases += [([f"{LETTERS[name]}{value}", "a.py"], {}), ([LETTERS[name], value, "a.py"], {})]
    return [*cases, *(([word], {}) for word in spellings(name)), ([f"--{name}", "a.py"], {})]


def abbreviations() -> list[Case]:
    cases: list[Case] = []
    for name, value in [*((name, (values or ("x",))[0]) for name, values in VALUES.items()), *((flag, None) for flag in FLAGS)]:
        for word in spellings(name):
            for end in range(3, len(word)):
                cases.append(([word[:end] if value is None else f"{word[:end]}={value}", "a.py"], {}))
    return cases


class Torchrun(NamedTuple):
    """The spellings of each option, and what torchrun makes of command lines."""

    options: list[list[str]]
    answers: dict[str, dict[str, Any]]

    def answer(self, case: Case) -> dict[str, Any]:
        return self.answers[json.dumps(case)]


@pytest.fixture(scope="session")
def torchrun(torch_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Torchrun:
    """It is asked all that there is to ask at once."""
    folder = tmp_path_factory.mktemp("oracle")
    cases = [case for cases in ALL.values() for case in cases]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "PYTHON"))} | {"TMPDIR": str(folder)}
    done = subprocess.run([torch_python, ORACLE], input=json.dumps(cases), cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return Torchrun(found["options"], {json.dumps(case): answer for case, answer in zip(cases, found["answers"], strict=True)})


def ours(words: Sequence[str], environ: Mapping[str, str]) -> dict[str, Any]:
    try:
        spec = parse_torchrun(words, environ=environ)
        # PyTorch has no GPU here.
        per_host = spec.ranks_of(0, len(os.sched_getaffinity(0)), "host")
    except LaunchArgumentError as error:
        return {"refused": str(error)}
    return {
        "program": spec.program,
        "arguments": list(spec.arguments),
        "kind": spec.kind,
        "hosts": [spec.min_hosts, spec.max_hosts],
        "per_host": per_host,
        "max_restarts": spec.max_restarts,
        "role": spec.role,
        "run_id": spec.run_id or "none",
        "master": [spec.master_addr or "127.0.0.1", spec.master_port],
        "local_addr": spec.local_addr,
        "standalone": spec.standalone,
        "virtual_local_rank": spec.virtual_local_rank,
        "shutdown_timeout": spec.shutdown_timeout,
        "log_dir": spec.log_dir,
        **_streams(spec),
        "shown": None if spec.shown is None else sorted(spec.shown),
    }


def _streams(spec: LaunchSpec) -> dict[str, dict[str, int]]:
    found = {"redirects": spec.redirects, "tees": spec.tees}
    return {name: {"all" if rank is None else str(rank): int(one) for rank, one in (by or {None: 0}).items()} for name, by in found.items()}


def is_spelling_only(answer: Mapping[str, Any]) -> bool:
    """Whether torchrun refuses a name because the two spellings of one option both begin with it, as argparse does before Python 3.12.3."""
    found = re.search(r"ambiguous option: \S+ could match (.+)", answer.get("refused", ""))
    return found is not None and len({name.replace("_", "-") for name in found[1].split(", ")}) == 1


ALL: dict[str, list[Case]] = {
    **{name: with_values(name) for name in VALUES},
    **{name: [([*words, "a.py"], {}) for word in spellings(name) for words in ([word], [word, "--role=x"])] for name in FLAGS},
    "abbreviations": abbreviations(),
    "more": [([*words, "a.py"], {}) for words in MORE],
    "programs": [(list(words), {}) for words in PROGRAMS],
    "variables": [(words, variables) for variables in VARIABLES for words in (["a.py"], ["--nnodes=3", "--role=b", "a.py"])],
    "different": [([*words, "a.py"], {}) for words in DIFFERENT],
}


@pytest.mark.parametrize("group", [name for name in ALL if name != "different"])
def test_command_lines(torchrun: Torchrun, group: str) -> None:
    wrong: list[str] = []
    for words, variables in ALL[group]:
        expected = torchrun.answer((words, variables))
        if is_spelling_only(expected) or tuple(words[:1]) in DIFFERENT or "torchrun.logs_specs" in expected.get("refused", ""):
            continue
        found = ours(words, variables)
        same = "refused" in found if "refused" in expected else found == expected
        if not same:
            wrong.append(f"{words} {variables}\n  torchrun: {expected}\n  ours:     {found}")
    assert not wrong, "\n".join(wrong)


def test_every_option_of_torchrun_is_known(torchrun: Torchrun) -> None:
    theirs = {word for words in torchrun.options for word in words if not re.fullmatch(r"-h|--help|--print.completion", word)}
    known = {word for option in OPTIONS for word in spellings(option.name)} | {f"-{option.letter}" for option in OPTIONS if option.letter}
    assert theirs == known
    assert {option.name for option in OPTIONS} == {*VALUES, *FLAGS}


@pytest.mark.parametrize("words", DIFFERENT, ids=" ".join)
def test_differences_are_there(torchrun: Torchrun, words: tuple[str, ...]) -> None:
    case: Case = ([*words, "a.py"], {})
    assert ("refused" in torchrun.answer(case)) != ("refused" in ours(*case))
