"""The troubles that schedulers know of the jobs of the processes, from the reports in a look.

A process begins to ask its schedulers when it is looked into, and has their answers in a later look.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from monarch.telemetry._diagnose.inspected import Looked, stack_answers
from monarch.telemetry._diagnose.snapshot import Trouble

# The name of the report in the answer of a process.
_REPORT = "schedulers"
# The most troubles of a process, and the most characters of a text about a row.
_MOST, _MOST_TEXT = 256, 200


def is_asking(looked: Looked) -> bool:
    """Whether a process waits for the answer of a scheduler."""
    return any(_REPORT in reports and reports[_REPORT] is None for reports in _reports(looked))


def troubles(looked: Looked) -> tuple[tuple[Trouble, ...], tuple[str, ...]]:
    """The troubles, and the schedulers without an answer; a process made the report itself, and it may have any form."""
    found, missing = list[Trouble](), list[str]()
    for reports in _reports(looked):
        given: object = reports.get(_REPORT)
        if given is not None and not isinstance(given, list):
            missing.append(f"scheduler: the report of a process has another form: {given!r}"[:_MOST_TEXT])
            continue
        for one in cast("list[Any]", given or [])[:_MOST]:
            try:
                fields = {name: str(one.get(name, "")) for name in ("kind", "text", "job", "source", "command")}
                trouble = Trouble(**fields, hosts=tuple(str(host) for host in one.get("hosts", ())))
            except (AttributeError, TypeError):
                missing.append(f"scheduler: a row of another form: {one!r}"[:_MOST_TEXT])
                continue
            if trouble.kind == "unknown":
                missing.append(f"scheduler: {trouble.text}")
            else:
                found.append(trouble)
    return tuple(dict.fromkeys(found)), tuple(dict.fromkeys(missing))


def _reports(looked: Looked) -> Iterator[Mapping[str, Any]]:
    for _, answer in stack_answers(looked):
        reports = answer.get("reports")
        if isinstance(reports, dict):
            yield reports
