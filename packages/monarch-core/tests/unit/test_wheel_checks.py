"""The lines of `monarch doctor` about the entry points of a wheel."""

from __future__ import annotations

from pathlib import Path

import pytest

from monarch._core.config.entry_points import entries_by_wheel
from monarch._core.observe.doctor import Line
from monarch._core.observe.wheel_checks import GROUP, Key, Report, report_of
from tools import installed_wheel

# An error of a wheel's own that names the missing requirement.
FAR = """
class Missing(ImportError):
    hint = "pip install 'some-words[far]'"

raise Missing("the far words need the package talk\\nhint: pip install 'some-words[far]'")
"""


def report(folder: Path, groups: dict[str, dict[str, str]], modules: dict[str, str]) -> tuple[Report, list[Key]]:
    installed_wheel.install(folder, "some-words", groups, modules)
    begun: list[Key] = []
    with installed_wheel.used(folder):
        return report_of(entries_by_wheel()["some-words 1.0"], begun.append), begun


def test_extra_that_is_missing_is_a_note(tmp_path: Path) -> None:
    groups = {"monarch.launcher": {"far": "far_words:Job", "near": "near_words:found"}}
    found, begun = report(tmp_path, groups, {"far_words": FAR, "near_words": "found = 1"})
    text = "some-words 1.0: 'far' of monarch.launcher is not installed: the far words need the package talk"
    assert found == Report(1, [Line("extensions", text, "pip install 'some-words[far]'", True)], [])
    assert not found.left_out[0].is_finding
    assert begun == [("monarch.launcher", "far"), ("monarch.launcher", "near")]


def test_module_that_is_missing_is_a_finding(tmp_path: Path) -> None:
    found, _ = report(tmp_path, {"monarch.launcher": {"far": "lost_words:Job"}}, {"broken_words": "import talk_that_is_missing"})
    assert found.left_out[0].is_finding and "pip install -U some-words" in found.left_out[0].todo
    assert "ModuleNotFoundError: No module named 'lost_words'" in found.left_out[0].text and "Traceback" in found.left_out[0].text


@pytest.mark.parametrize("error", ["SystemExit: 3", "LookupError: no lamp"])
def test_failing_check_of_another_wheel_is_a_finding(error: str, tmp_path: Path) -> None:
    kind, _, text = error.partition(": ")
    module = f"lamp_{kind.lower()}"
    source = f"def check():\n    yield 'lamp', 'is there', ''\n    raise {kind}({text!r})\n"
    found, _ = report(tmp_path, {GROUP: {"lamp": f"{module}:check"}}, {module: source})
    assert found.added[0] == Line("lamp", "is there")
    failed = found.added[1]
    assert failed.subject == "lamp" and error in failed.text and "some-words 1.0" in failed.text and failed.is_finding
