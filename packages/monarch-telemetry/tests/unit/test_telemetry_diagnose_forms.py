"""Answers of another form: what a process reports wrongly is left out and named, and keeps no detector from the other processes."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from monarch.telemetry._diagnose import forms
from monarch.telemetry._diagnose.diagnosis import Diagnosis, diagnosed
from monarch.telemetry._diagnose.inspected import Looked, snapshot
from monarch.telemetry._diagnose.registry import OWN
from monarch.telemetry._diagnose.resources import processor_checks, resource_checks

CONNECTION = {"here": ["10.0.0.1", 1], "there": ["10.0.0.2", 2], **dict.fromkeys(forms.COUNTERS, 1)}
RESOURCES: dict[str, Any] = {
    "clock": [1.0, 2.0],
    "memory": {"resident": 1, "anonymous": 1, "shared": 0, "swapped": 0, "major_faults": 0},
    "threads": {"number": 3, "blocked": [7], "printing": [7]},
    "programs": {"number": 1, "stopped": []},
    "disk": {"read": 0, "written": 0},
    "descriptors": {"number": 17, "limit": 20000, "targets": [["pipe", 4]]},
    "cgroups": {"memory": {"path": "/g", "used": 1, "limit": 9, "failures": 0, "cache": 0}},
    "file_systems": [
        {"folder": "/", "device": 1, "free": 5, "free_files": 5, "files": 9, "read_only": False, "size": 9, "is_temporary": False}
    ],
    "connections": [CONNECTION],
    "kernel_waits": {
        "threads": [{"pid": 2, "thread": 70, "call": "child", "child": 9}],
        "programs": [{"pid": 9, "name": "sh", "state": "S", "ran": 1, "threads": 1, "wait": {"pid": 9, "thread": 9, "call": "sleep"}}],
    },
    "raised": [{"kind": "thread", "name": "t", "error": "ValueError", "frames": [["/srv/load.py", 3, "read"]], "age": 1.0}],
}
WAIT = [["/usr/lib/python3.11/threading.py", 3, "Condition.wait"], ["/srv/train.py", 3, "step"]]


def looked(resources: Any = RESOURCES, threads: Any = WAIT, **row: Any) -> Looked:
    """A proc that waits in an endpoint, with this report of itself."""
    actor = {"mesh": "m", "display": "<root>.<T trainer>", "thread": 5, "doing": "step", "doing_for": 41.0, "queued": 3, "taken": 2}
    state = {"uid": "p", "pid": 2, "name": "<root>.<workers>", "age": 50.0, "silent": None, "evidence": None, "kernel": "S", "rss": 1}
    proc = {**state, "state": "running", "answer": {"actors": [actor]}}
    answer = {"pid": 2, "threads": [{"thread": 5, "name": "actor", "native": 70, "ran": 0, "frames": threads}], "waits": [], **row}
    stacks = {"uid": "p", "answer": {**answer, "resources": copy.deepcopy(resources)}}
    return Looked({"host": "a", "procs": [proc], "hosts": []}, {"host": "a", "procs": [stacks], "hosts": []})


def diagnosis(now: Looked) -> Diagnosis:
    found = snapshot(looked(), now, 0.4)
    checks = (*resource_checks(found.procs), *processor_checks(found.procs, looked(), now))
    return diagnosed(found._replace(checks=checks), OWN)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each member of each dictionary and list below a value, with its container."""
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from places(value[key])


def test_report_of_its_form_is_kept() -> None:
    assert forms.resources({"resources": RESOURCES}) == RESOURCES and not list(forms.misfits({"resources": RESOURCES}))
    found = diagnosis(looked())
    assert not found.missing and not found.left_out
    assert [cause.detector for cause in found.causes] == ["raised"]


@pytest.mark.parametrize("wrong", [None, "x", [[]], float("inf")], ids=repr)
def test_wrong_value_keeps_no_detector_from_others(wrong: Any) -> None:
    for number in range(sum(1 for _ in places(RESOURCES))):
        resources = copy.deepcopy(RESOURCES)
        container, key = list(places(resources))[number]
        container[key] = wrong
        found = diagnosis(looked(resources))
        assert not found.left_out, (key, found.left_out)


def test_row_of_another_form_is_left_out_alone() -> None:
    found = diagnosis(looked({**RESOURCES, "raised": [5, *RESOURCES["raised"]], "memory": {"swapped": "much"}}))
    assert [cause.detector for cause in found.causes] == ["raised"]
    assert set(found.missing) == {f"process 2: resource {name}: a row of another form" for name in ("raised", "memory")}


@pytest.mark.parametrize(
    "row",
    [{"threads": [[3, 3, "f"]]}, {"threads": [["f", "x", "f"]]}, {"waits": [{"thread": 5, "blocks": True, "frames": [[[], 1, "f"]]}]}],
    ids=str,
)
def test_call_of_another_form_is_named(row: Any) -> None:
    [missing] = snapshot(looked(**row), looked(**row), 0.4).missing
    assert missing.startswith("process 2: its answer has another form")


def test_part_that_has_failed_is_named_once() -> None:
    broken = looked({name: value for name, value in RESOURCES.items() if name != "raised"}, left_out={"raised": "IndexError: list"})
    assert diagnosis(broken).missing == ("process 2: raised: IndexError: list",)


def test_process_that_missed_a_look_is_named() -> None:
    late = looked({})
    assert diagnosis(late).missing == ("process 2: waits and resources in one of two looks",)
