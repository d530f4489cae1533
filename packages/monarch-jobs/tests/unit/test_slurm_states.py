"""What SLURM says about a job, read from the text of several releases."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slurm_outputs import RELEASES, Release

from monarch.job._slurm import states
from monarch.job._slurm.states import Record

CONTRACT = "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED REVOKED SPECIAL_EXIT TIMEOUT".split()


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.name)
def test_a_job_that_has_ended(release: Release) -> None:
    ended = Record("TIMEOUT", "TimeLimit", "n[0-2]", "0:15", "2026-11-21T10:01:03", 2)
    assert states.from_squeue(release.squeue, "4711") == Record("TIMEOUT", "TimeLimit", "n[0-2]")
    assert states.from_scontrol(release.scontrol, "4711") == ended
    assert states.from_sacct(release.sacct, "4711") == Record("TIMEOUT", "TimeLimit", "", "0:15", "2026-11-21T10:01:03")


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.name)
def test_the_components_of_a_job_are_one(release: Release) -> None:
    found = states.from_squeue(release.squeue, "4712")
    assert found == Record("RUNNING", "", "n[3-4],gpu07")
    assert found.phase == "running"
    assert states.from_sacct(release.sacct, "4712") == Record("RUNNING", "", "", "0:0")


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.name)
def test_another_job_is_not_taken_for_it(release: Release) -> None:
    for job_id in ("471", "1", "47110"):
        assert states.from_squeue(release.squeue, job_id) is None
        assert states.from_scontrol(release.scontrol, job_id) is None
        assert states.from_sacct(release.sacct, job_id) is None


@pytest.mark.parametrize("state", CONTRACT)
def test_states_that_are_the_end(state: str) -> None:
    assert Record(state).phase == "ended"
    for text in (state, f"{state}+", f"{state} by 1000", state.lower()):
        assert states.state_name(text) == state


def test_every_state_is_in_one_phase() -> None:
    assert not states.ENDED & states.PENDING and not states.ENDED & states.RUNNING and not states.RUNNING & states.PENDING
    assert Record("SUSPENDED").phase == Record("CONFIGURING").phase == "pending"
    assert Record("COMPLETING").phase == "running"
    assert Record("SOMETHING_NEW").phase == Record("").phase == "unknown"


def test_a_component_that_failed_is_the_end_of_all() -> None:
    found = states.from_squeue("7+0|RUNNING|None|n0\n7+1|NODE_FAIL|NodeDown|n1\n", "7")
    assert found is not None and (found.state, found.reason, found.phase) == ("NODE_FAIL", "NodeDown", "ended")
    found = states.from_squeue("7+0|COMPLETED|None|n0\n7+1|RUNNING|None|n1\n", "7")
    assert found is not None and found.phase == "running"
    found = states.from_squeue("7+0|RUNNING|None|n0\n7+1|PENDING|Resources|\n", "7")
    assert found is not None and (found.phase, found.reason) == ("pending", "Resources")


def test_the_last_run_of_a_requeued_job_counts() -> None:
    text = "9|NODE_FAIL|0:0|None|2026-11-21T10:00:00\n9|COMPLETED|0:0|None|2026-11-21T11:00:00\n"
    assert states.from_sacct(text, "9") == Record("COMPLETED", "", "", "0:0", "2026-11-21T11:00:00")


@given(st.text(max_size=200), st.text(alphabet="0123456789", min_size=1, max_size=6))
def test_garbage_is_no_job(text: str, job_id: str) -> None:
    for read in (states.from_squeue, states.from_scontrol, states.from_sacct):
        found = read(text, job_id)
        assert found is None or isinstance(found, Record)


@given(st.lists(st.sampled_from("|=+ \nJobId=4711 JobState=RUNNING 4711+0".split(" ") + ["\n", " "]), max_size=30))
def test_near_misses_are_read_without_an_error(words: list[str]) -> None:
    for read in (states.from_squeue, states.from_scontrol, states.from_sacct):
        read("".join(words), "4711")
