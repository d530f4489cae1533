"""Events that were overwritten: when processes introduce themselves again, and which ends are taken for lost."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from monarch.telemetry._ingest.gaps import Gaps, LostEnds
from monarch.telemetry._tables.exit_reason import UNKNOWN

WORKER, OTHER, MESH, SECOND = 5, 6, 31, 32


def test_gap_is_requested_once() -> None:
    gaps = Gaps()
    assert not gaps.due(0.0)
    gaps.found()
    assert gaps.due(10.0) and not gaps.due(1000.0)


@settings(deadline=None)
@given(st.lists(st.floats(0.05, 5.0), min_size=1, max_size=200))
def test_requests_after_gaps_are_rate_limited(steps: list[float]) -> None:
    gaps, now, asked = Gaps(), 0.0, list[float]()
    for step in steps:
        now += step
        gaps.found()
        if gaps.due(now):
            asked.append(now)
    assert all(later - earlier >= 1.0 for earlier, later in zip(asked, asked[1:], strict=False))
    assert len(asked) <= 1 + now
    assert gaps.due(now + 200.0) == (asked[-1] != now)


def test_requests_are_prompt_after_a_quiet_time() -> None:
    gaps = Gaps()

    def busy(since: int, until: int) -> int:
        count = 0
        for now in range(since, until):
            gaps.found()
            count += gaps.due(float(now))
        return count

    assert busy(0, 600) < 25
    assert busy(10_000, 10_001) == 1


def looked(*procs: int, meshes: tuple[int, ...] = (MESH, SECOND), ends: dict[int, str] | None = None) -> dict[str, Any]:
    rows = [{"proc": f"{proc:x}", "ended": True, "kind": kind, "number": 9, "detail": ""} for proc, kind in (ends or {}).items()]
    return {
        "procs": [{"uid": f"{proc:x}", "answer": {"actors": [{"mesh": f"{mesh:x}"} for mesh in meshes]}} for proc in procs],
        "recordings": rows,
    }


def test_proc_missing_in_two_looks_has_ended() -> None:
    ends = LostEnds()
    living = {WORKER, OTHER}
    assert ends.look(looked(OTHER), living, {}, (), 1) == ([], [])
    found, _ = ends.look(looked(OTHER, ends={WORKER: "signal"}), living, {}, (), 2)
    assert found == [{"us": 2, "peer": WORKER, "kind": "signal", "number": 9, "detail": ""}]
    # A returned one was only not observed; one that the agent does not remember has no reason.
    assert ends.look(looked(OTHER, WORKER), living, {}, (), 3) == ([], [])
    assert ends.look(looked(OTHER), living, {}, (), 4) == ([], [])
    found, _ = ends.look(looked(OTHER), living, {}, (), 5)
    assert [(row["peer"], row["kind"]) for row in found] == [(WORKER, UNKNOWN)]


def test_actors_are_searched_where_events_were_lost() -> None:
    ends, living = LostEnds(), {WORKER: (MESH, SECOND)}
    one = looked(WORKER, meshes=(MESH,))
    silent = {"procs": [{"uid": f"{WORKER:x}", "answer": None}]}
    for look, torn, over in (
        (one, (), []),
        (one, (WORKER,), []),
        (one, (WORKER,), [SECOND]),
        (silent, (WORKER,), []),
        (one, (WORKER,), []),
    ):
        assert [row["mesh"] for row in ends.look(look, (), living, torn, 1)[1]] == over
