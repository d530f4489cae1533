"""The driver of CI: the selected steps, and the effect of a failed one."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pytest

from tools import ci_steps, lanes
from tools.ci_steps import changed, chosen, limited, main
from tools.lanes import Lanes, Step


def step(name: str, stage: str, code: str) -> Step:
    return Step(name, stage, (sys.executable, "-c", code))


def test_steps_are_chosen_in_table_order() -> None:
    assert chosen([]) == [one for one in ci_steps.STEPS if one.name != "pythons"]
    assert [one.name for one in chosen(["pythons"])] == ["pythons"]
    assert [one.name for one in chosen(["pytest", "ruff", "wheels"])] == [
        "ruff",
        "build_wheels",
        "check_wheels",
        "pytest_core",
        "pytest_others",
    ]
    with pytest.raises(SystemExit, match="no step 'nothing'"):
        chosen(["nothing"])


def names_for(wheels: set[str]) -> list[str]:
    return [one.name for one in limited(list(ci_steps.STEPS), wheels)]


def test_changed_wheel_selects_steps_and_tests() -> None:
    assert {"build_k8s", "k8s", "build_wheels", "unit", "docs"} <= set(names_for({"monarch-jobs"}))
    assert not {"cargo", "clippy", "pytest_core", "verbs", "tensor", "chaos"} & set(names_for({"monarch-jobs"}))
    assert {"verbs", "pytest_others"} <= set(names_for({"monarch-rdma"}))
    assert {"tensor", "api_tensor", "torch", "build_torch"} <= set(names_for({"monarch-tensor"}))
    others = next(one for one in limited(list(ci_steps.STEPS), {"monarch-fs", "monarch-rdma"}) if one.name == "pytest_others")
    assert others.argv[-2:] == ("packages/monarch-fs/tests", "packages/monarch-rdma/tests")
    assert not any(word.startswith("--ignore") for word in others.argv)


def test_changed_page_selects_checks_of_pages() -> None:
    steps = limited(list(ci_steps.STEPS), set())
    assert [one.name for one in steps if one.cache] == ["unit"]
    assert next(one for one in steps if one.cache).argv[-1] == "tools/tests/unit"
    assert {"style", "generated", "types", "docs"} <= {one.name for one in steps}


def test_selection_without_tests_is_skipped(tmp_path: Path) -> None:
    empty = step("empty", "one", "raise SystemExit(5)")._replace(cache=str(tmp_path / "cache"))
    with Lanes() as two:
        two.run([empty, empty._replace(sparse=True)])
    assert [outcome.state for outcome in two.outcomes] == ["FAILED (5)", "skipped"]


@pytest.mark.parametrize(("wheels", "everything"), [(None, True), ({"monarch-core", "monarch-jobs"}, True), ({"monarch-jobs"}, False)])
def test_core_and_tools_select_everything(wheels: set[str] | None, everything: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ci_steps, "changed_files", lambda _base: [])
    monkeypatch.setattr(ci_steps, "concerned", lambda _files: wheels)
    first, *others = changed(list(ci_steps.STEPS), "BASE")
    assert first.argv[-2:] == ("tools.check_commits", "BASE")
    assert (others == list(ci_steps.STEPS)) is everything


def test_unknown_base_selects_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert changed(list(ci_steps.STEPS), "no-such-commit") == list(ci_steps.STEPS)
    assert "everything runs" in capsys.readouterr().out


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


def test_slowest_tests_of_all_steps(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    tests = [[f"{seconds}.25s call     test_{seconds}.py::test" for seconds in range(start, 20, 2)] for start in (0, 1)]
    steps = tuple(step(f"tests_{number}", "one", f"print({chr(10).join(lines)!r})") for number, lines in enumerate(tests))
    monkeypatch.setattr(ci_steps, "STEPS", steps)
    assert main([]) == 0
    found = capsys.readouterr().out.partition("the slowest tests:\n")[2].splitlines()
    assert found == [f"{seconds}.25s call     test_{seconds}.py::test" for seconds in range(19, 9, -1)]
