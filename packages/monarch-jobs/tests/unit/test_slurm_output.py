"""The output of SLURM's commands, of several releases: jobs, host lists against a model, the size of nodes."""

from __future__ import annotations

import itertools
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slurm_outputs import RELEASES, Release

from monarch.job.slurm import output
from monarch.job.slurm.output import HOSTS_LIMIT, JobRecord, NodeSize, Share, expand, from_sinfo, share

CONTRACT = "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED REVOKED SPECIAL_EXIT TIMEOUT".split()


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.name)
def test_ended_job_has_its_reason(release: Release) -> None:
    ended = JobRecord("TIMEOUT", "TimeLimit", "n[0-2]", "0:15", "2026-11-21T10:01:03", 2)
    assert output.from_squeue(release.squeue, "4711") == JobRecord("TIMEOUT", "TimeLimit", "n[0-2]")
    assert output.from_scontrol(release.scontrol, "4711") == ended
    assert output.from_sacct(release.sacct, "4711") == JobRecord("TIMEOUT", "TimeLimit", "", "0:15", "2026-11-21T10:01:03")


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.name)
def test_components_of_a_job_are_one_record(release: Release) -> None:
    found = output.from_squeue(release.squeue, "4712")
    assert found == JobRecord("RUNNING", "", "n[3-4],gpu07")
    assert found.phase == "running"
    assert output.from_sacct(release.sacct, "4712") == JobRecord("RUNNING", "", "", "0:0")


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.name)
def test_another_job_is_not_taken_for_it(release: Release) -> None:
    for job_id in ("471", "1", "47110"):
        assert output.from_squeue(release.squeue, job_id) is None
        assert output.from_scontrol(release.scontrol, job_id) is None
        assert output.from_sacct(release.sacct, job_id) is None


@pytest.mark.parametrize("state", CONTRACT)
def test_states_that_are_the_end(state: str) -> None:
    assert JobRecord(state).phase == "ended"
    for text in (state, f"{state}+", f"{state} by 1000", state.lower()):
        assert output.state_name(text) == state


def test_every_state_is_in_one_phase() -> None:
    assert not output.ENDED & output.PENDING and not output.ENDED & output.RUNNING and not output.RUNNING & output.PENDING
    assert JobRecord("SUSPENDED").phase == JobRecord("CONFIGURING").phase == "pending"
    assert JobRecord("COMPLETING").phase == "running"
    assert JobRecord("SOMETHING_NEW").phase == JobRecord("").phase == "unknown"


def test_failed_component_ends_the_whole_job() -> None:
    found = output.from_squeue("7+0|RUNNING|None|n0\n7+1|NODE_FAIL|NodeDown|n1\n", "7")
    assert found is not None and (found.state, found.reason, found.phase) == ("NODE_FAIL", "NodeDown", "ended")
    found = output.from_squeue("7+0|COMPLETED|None|n0\n7+1|RUNNING|None|n1\n", "7")
    assert found is not None and found.phase == "running"
    found = output.from_squeue("7+0|RUNNING|None|n0\n7+1|PENDING|Resources|\n", "7")
    assert found is not None and (found.phase, found.reason) == ("pending", "Resources")


def test_last_run_of_a_requeued_job_counts() -> None:
    text = "9|NODE_FAIL|0:0|None|2026-11-21T10:00:00\n9|COMPLETED|0:0|None|2026-11-21T11:00:00\n"
    assert output.from_sacct(text, "9") == JobRecord("COMPLETED", "", "", "0:0", "2026-11-21T11:00:00")


@given(st.text(max_size=200), st.text(alphabet="0123456789", min_size=1, max_size=6))
def test_garbage_is_no_job(text: str, job_id: str) -> None:
    for read in (output.from_squeue, output.from_scontrol, output.from_sacct):
        found = read(text, job_id)
        assert found is None or isinstance(found, JobRecord)


@given(st.lists(st.sampled_from("|=+ \nJobId=4711 JobState=RUNNING 4711+0".split(" ") + ["\n", " "]), max_size=30))
def test_near_misses_are_read_without_an_error(words: list[str]) -> None:
    for read in (output.from_squeue, output.from_scontrol, output.from_sacct):
        read("".join(words), "4711")


_WORDS = st.text(alphabet="abcn-_.", min_size=1, max_size=4)


@st.composite
def _ranges(draw: st.DrawFn) -> tuple[str, list[str]]:
    width = draw(st.integers(1, 3))
    texts: list[str] = []
    numbers: list[str] = []
    for first, length in draw(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 3)), min_size=1, max_size=3)):
        own = [str(number).zfill(width) for number in range(first, first + length + 1)]
        texts.append(own[0] if length == 0 else f"{own[0]}-{own[-1]}")
        numbers += own if len(own[0]) == len(str(first).zfill(width)) else []
    return f"[{','.join(texts)}]", numbers


@st.composite
def _names(draw: st.DrawFn) -> tuple[str, list[str]]:
    parts = [draw(st.one_of(_WORDS.map(lambda word: (word, [word])), _ranges())) for _ in range(draw(st.integers(1, 3)))]
    parts = [("n", ["n"]), *parts]
    return "".join(text for text, _ in parts), ["".join(words) for words in itertools.product(*(found for _, found in parts))]


@given(st.lists(_names(), max_size=4))
def test_expands_as_it_was_put_together(parts: list[tuple[str, list[str]]]) -> None:
    assert expand(",".join(text for text, _ in parts)) == [name for _, names in parts for name in names]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("n0", ["n0"]),
        ("n[0-2,7],gpu[01-02]-ib", ["n0", "n1", "n2", "n7", "gpu01-ib", "gpu02-ib"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("rack[0-1]n[0-1]", ["rack0n0", "rack0n1", "rack1n0", "rack1n1"]),
    ],
)
def test_lists_as_slurm_prints_them(text: str, names: list[str]) -> None:
    assert expand(text) == names
    if text and shutil.which("scontrol"):
        shown = subprocess.run(["scontrol", "show", "hostnames", text], capture_output=True, text=True, env={"SLURM_CONF": "/dev/null"})
        assert shown.returncode or shown.stdout.split() == names


@pytest.mark.parametrize(
    "text", ["n[0-2", "n0]", "n[[0]]", "n[]", "n[a-b]", "n[3-1]", "n0,,n1", ",", "n 0", "n0;rm", f"n[0-{HOSTS_LIMIT}]", "$(x)"]
)
def test_malformed_node_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        expand(text)


def test_smallest_node_counts() -> None:
    text = "96|1031000+|gpu:a100:8(S:0-1),nvme:2\n128+|515000|gpu:4\n\ngarbage\n"
    assert from_sinfo(text) == NodeSize(96, 515000, 4)
    assert from_sinfo("64|256000|(null)\n") == NodeSize(64, 256000, 0)
    assert from_sinfo("") is None and from_sinfo("a|b|c\n") is None


def test_node_share_is_that_of_the_gpus() -> None:
    assert share(NodeSize(96, 960_000, 8), 2, 1) == Share(12, "240000M", 2)
    assert share(NodeSize(96, 960_000, 8), 1, 8) == Share(96, "960000M", 8)


def test_without_gpus_each_task_has_a_cpu() -> None:
    assert share(NodeSize(64, 256_000, 0), 16, 0) == Share(1, "64000M", None)


@pytest.mark.parametrize(("tasks", "gpus"), [(2, 5), (9, 1), (97, 0)])
def test_oversized_share_is_refused(tasks: int, gpus: int) -> None:
    with pytest.raises(ValueError, match="do not fit: nodes have 96 cpus and 8 GPUs"):
        share(NodeSize(96, 960_000, 8), tasks, gpus)
