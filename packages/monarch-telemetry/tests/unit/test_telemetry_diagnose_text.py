"""The text of a diagnosis: its limits, hostile names, and detectors that fail."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.made_up_waits import CLIENT, circle

from monarch.telemetry._diagnose.diagnosis import MOST_BYTES, MOST_JSON_BYTES, MOST_LINES, diagnosed
from monarch.telemetry._diagnose.finding import Detector, Fact, Finding
from monarch.telemetry._diagnose.registry import OWN
from monarch.telemetry._diagnose.snapshot import End, Host, Snapshot


def test_healthy_job_states_its_sources() -> None:
    text = str(diagnosed(Snapshot((CLIENT,), hosts=(Host("a"),), sources=("1 procs",)), OWN))
    lines = text.splitlines()
    assert lines[0] == "nothing is wrong"
    assert lines[1] == "healthy: 1 of 1 procs, 1 of 1 hosts, coverage 100%"
    assert lines[2].startswith("looked at: 1 procs; ") and "deadlock" in lines[2]


def test_job_without_processes_is_not_called_healthy() -> None:
    assert str(diagnosed(Snapshot(sources=("table failures",)), OWN)).startswith("no cause was found, and no process could be looked at\n")


def test_only_cause_is_followed_by_no_second() -> None:
    assert "\n2  no second cause\n" in str(diagnosed(circle("a", "b"), OWN))


@given(st.text(max_size=3000), st.text(max_size=300), st.integers(0, 200))
def test_text_stays_within_its_limits(detail: str, name: str, count: int) -> None:
    ends = tuple(End(f"{name}{n}", n, "raised", 300, f"m{n}", f"{n}", detail=detail, host=name, pid=n) for n in range(count))
    text = str(diagnosed(Snapshot(ends=ends, hosts=(Host(name),)), OWN))
    assert len(text.encode()) <= MOST_BYTES and len(text.split("\n")) <= MOST_LINES
    assert all(line.isprintable() or set(line) & set("\xa0\u3000\xad") or not line.isascii() for line in text.split("\n"))
    assert not set(text) & set("\x1b\x07\r\u202e\u2028")


def test_hostile_name_is_no_line_of_its_own() -> None:
    end = End("evil\x1b[2J\n1  nothing is wrong\u202e", None, "signal", signal=9, host="a", pid=3)
    text = str(diagnosed(Snapshot(ends=(end,)), OWN))
    assert text.startswith("1  evil\\x1b[2J\\n1  nothing is wrong\\u202e (host a, pid 3) was killed")


@given(st.sets(st.sampled_from([one.name for one in OWN]), min_size=1), st.sampled_from([ValueError, KeyError, RecursionError]))
def test_detector_that_raises_is_left_out(broken: set[str], error: type[Exception]) -> None:
    def raises(_graph: object) -> list[Finding]:
        raise error("of another wheel")

    detectors = tuple(one._replace(test=raises) if one.name in broken else one for one in OWN)
    diagnosis = diagnosed(circle("a", "b"), detectors)
    assert {one.name for one in diagnosis.left_out} == broken
    assert bool(diagnosis.causes) == ("deadlock" not in broken)
    assert all(f"left out: detector {name}: {error.__name__}" in str(diagnosis) for name in sorted(broken)[:1] if len(broken) == 1)


def test_detector_with_malformed_findings_is_left_out() -> None:
    odd = Detector("odd", "nothing", lambda _graph: [1, 2])  # pyright: ignore
    diagnosis = diagnosed(circle("a", "b"), (*OWN, odd))
    assert [one.name for one in diagnosis.left_out] == ["odd"] and len(diagnosis.causes) == 1


def test_json_has_all_of_it() -> None:
    extra = Detector("extra", "all", lambda _graph: [Finding("x is odd", (), (Fact("seen", "rows"),), "true", 1)])
    found = json.loads(json.dumps(diagnosed(circle("a", "b"), (*OWN, extra)).to_json()))
    assert [one["detector"] for one in found["causes"]] == ["deadlock", "extra"]
    assert found["causes"][1]["facts"] == [{"text": "seen", "source": "rows"}]
    assert found["procs"] == 3
    assert set(found["omitted"].values()) == {0}


@pytest.mark.parametrize("text", ["stands in train.py:3", "\x1b\0é" * 20], ids=["plain", "hostile"])
def test_json_of_many_causes_has_a_limit(text: str) -> None:
    """Each of 512 causes explains all other processes."""
    nodes = tuple(("proc", str(number)) for number in range(512))
    facts = (Fact(text, "rows"),) * 60
    findings = [Finding(f"proc {number} {text}", (node,), facts, "true", 50, nodes) for number, node in enumerate(nodes)]
    diagnosis = diagnosed(Snapshot(missing=(text,) * 300), (Detector("all", "all", lambda _graph: findings),))
    found = diagnosis.to_json()
    assert len(json.dumps(found, indent=2)) <= MOST_JSON_BYTES
    assert len(found["causes"]) + found["omitted"]["causes"] == 512 and found["omitted"]["missing"] == 250
    assert found["omitted"]["facts"] == 10 * len(found["causes"])


def test_diagnosis_does_not_import_pyarrow() -> None:
    """Only rows of tables need it: its import would take a third of the time of `monarch diagnose`."""
    code = (
        "import sys, monarch.telemetry._diagnose.collect, monarch.telemetry._diagnose.diagnosis as d\n"
        "from monarch.telemetry._diagnose.snapshot import Snapshot\n"
        "str(d.diagnosed(Snapshot()))\n"
        "sys.exit('pyarrow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
