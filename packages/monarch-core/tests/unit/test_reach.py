"""The use of the answers of other machines by verbs."""

from __future__ import annotations

import pytest

from monarch._core.cli import reach
from monarch._core.cli.reach import Elsewhere


@pytest.mark.parametrize("output", ["", "no JSON", "{}", "7", "[1]", '[{"a": 1}, 2]', "null"])
def test_malformed_output_of_a_host_is_an_error(output: str) -> None:
    found = [Elsewhere("a[0]", 0, output), Elsewhere("a[1]", 0, '[{"b": 1}]'), Elsewhere("a[2]", 1, "", "lost")]
    assert reach.rows(found) == [{"on": "a[0]", "error": output}, {"on": "a[1]", "b": 1}, {"on": "a[2]", "error": "lost"}]


def test_debuggers_are_lines_of_hosts_that_answered(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = [Elsewhere("a[0]", 0, "process 1, b:2\nprocess 3, b:4\n"), Elsewhere("a[1]", 1, "Traceback", "monarch: a[1]: it was killed")]
    monkeypatch.setattr(reach, "elsewhere", lambda verb: found)
    assert reach.debuggers() == ["a[0], process 1, b:2", "a[0], process 3, b:4"]
    assert capsys.readouterr() == ("", "monarch: a[1]: it was killed\n")
