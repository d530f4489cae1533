"""Steps of CI whose failed tests are repeated."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from tools import ci_steps
from tools.ci_steps import chosen, main
from tools.lanes import MOST_REPEATED, Step

# The first run of this fails, each later one passes.
ONCE = """
from pathlib import Path

def test_once():
    mark = Path(__file__).with_name("ran")
    ran, _ = mark.exists(), mark.touch()
    assert ran
"""


@pytest.fixture
def counted(tmp_path: Path) -> Path:
    """A file with a line for each run of pytest in the folder."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text("with open(__file__ + '.runs', 'a') as f:\n    f.write('run\\n')\n")
    return tmp_path / "conftest.py.runs"


def pytest_step(folder: Path, code: str, *, queue: int = 0) -> Step:
    """A step that runs tests with this code in the folder."""
    (folder / "test_it.py").write_text(textwrap.dedent(code))
    cache = folder / "cache"
    argv = (
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-o",
        f"cache_dir={cache}",
        "--rootdir",
        str(folder),
        "-c",
        f"{folder}/pytest.ini",
        str(folder),
    )
    return Step("tests", "one", argv, queue=queue, cache=str(cache))


def later() -> Step:
    return Step("later", "two", (sys.executable, "-c", "print('later', 'ran')"))


@pytest.mark.parametrize("queue", [0, 1])
def test_test_that_passes_alone_is_flaky(
    queue: int, counted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = (pytest_step(tmp_path, f"{ONCE}\ndef test_good():\n    pass\n", queue=queue), later())
    monkeypatch.setattr(ci_steps, "STEPS", steps)
    assert main([]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == "flaky: test_it.py::test_once"
    assert "tests          flaky (1)" in out and "later ran" in out
    assert counted.read_text().splitlines() == ["run"] * 2
    # The second run has one test.
    assert "\n1 passed in " in out


@pytest.mark.parametrize(
    ("code", "runs"),
    [
        pytest.param("def test_bad():\n    assert False\n", 2, id="failed again"),
        pytest.param("assert False\n", 1, id="not collected"),
        pytest.param("import os\ndef test_end():\n    os._exit(1)\n", 1, id="process ended"),
        pytest.param(
            f"import pytest\n@pytest.mark.parametrize('n', range({MOST_REPEATED + 1}))\ndef test_bad(n):\n    assert False\n", 1, id="many"
        ),
        pytest.param(
            "import os, pytest\n@pytest.mark.parametrize('n', [os.getpid()])\ndef test_bad(n):\n    assert 0\n", 2, id="not found"
        ),
    ],
)
def test_other_failures_stay_failures(
    code: str, runs: int, counted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ci_steps, "STEPS", (pytest_step(tmp_path, code), later()))
    assert main([]) == 1
    out = capsys.readouterr().out
    assert "tests          FAILED" in out and "later          not run" in out and "flaky" not in out
    assert counted.read_text().splitlines() == ["run"] * runs


def test_each_run_of_pytest_has_its_own_cache() -> None:
    steps = [step for step in chosen(["tests"]) if step.cache]
    assert [step.name for step in steps] == ["pytest_core", "unit", "pytest_others", "k8s", "torch", "tensor"]
    assert all(f"cache_dir={step.cache}" in step.argv for step in steps) and len({step.cache for step in steps}) == len(steps)
