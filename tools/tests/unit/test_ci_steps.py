"""The driver of CI: the selected steps, and the effect of a failed one."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pytest

from tools import ci_steps, lanes
from tools.ci_steps import chosen, main
from tools.lanes import Lanes, Step


def step(name: str, stage: str, code: str) -> Step:
    return Step(name, stage, (sys.executable, "-c", code))


def test_steps_are_chosen_in_table_order() -> None:
    assert chosen([]) == list(ci_steps.STEPS)
    assert [one.name for one in chosen(["pytest", "ruff", "wheels"])] == [
        "ruff",
        "build_wheels",
        "check_wheels",
        "pytest_core",
        "pytest_others",
    ]
    with pytest.raises(SystemExit, match="no step 'nothing'"):
        chosen(["nothing"])


def test_failed_step_ends_the_run_after_its_stage(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    steps = (step("bad", "one", "raise SystemExit(7)"), step("good", "one", "print('ran')"), step("later", "two", "print('never')"))
    monkeypatch.setattr(ci_steps, "STEPS", steps)
    assert main([]) == 1
    out = capsys.readouterr().out
    assert "FAILED (7)" in out
    assert "\nran\n" in out
    assert "later          not run" in out
    assert "\nnever\n" not in out


def test_programs_beside_the_interpreter_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "tool"
    program.write_text("#!/bin/sh\necho found it\n")
    program.chmod(0o755)
    assert lanes.PATH.split(os.pathsep)[0] == str(Path(sys.executable).parent)
    monkeypatch.setattr(lanes, "PATH", str(tmp_path))
    with Lanes() as two:
        two.run([Step("tool", "one", ("tool",), needs="tool")])
    assert [outcome.code for outcome in two.outcomes] == [0]


def test_step_apart_has_its_own_shared_memory() -> None:
    if os.getuid() != 0:
        pytest.skip("a /dev/shm of its own needs root")
    code = "import os, sys; sys.exit(len(os.listdir('/dev/shm')))"
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="other-"), Lanes() as two:
        two.run([step("apart", "one", code)._replace(apart=True)])
    assert [outcome.code for outcome in two.outcomes] == [0]


def test_closing_lines_of_test_runners_come_last(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    closing = "===== 3 passed in 0.01s ====="
    missing = Step("skipped", "one", ("no-such-program",), needs="no-such-program")
    monkeypatch.setattr(ci_steps, "STEPS", (step("tests", "one", f"print({closing!r}); print('after')"), missing))
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == closing
    assert any(line.endswith("skipped        skipped") for line in lines)
