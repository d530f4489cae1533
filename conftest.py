"""Gives every test its category, the name of its folder under `tests/`, and adds all stacks to the report of a time-out.

Leaves out folders of categories that `-m` excludes, and tests that import PyTorch if it is missing.
Programs of tests start with the signals of a fresh shell.
"""

from __future__ import annotations

import importlib.util
import re
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The limit of an example's time would be an assertion on time, and so would the check for slow examples.
settings.register_profile("untimed", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# Without PyTorch, a folder `torch` would be imported as the package.
FOLDERS = {"pytorch": "torch"}
CATEGORIES = ("unit", "process", "net", "fuse", "slurm", "ssh", "k8s", "torch", "gpu", "verbs", "bench")
# Tests in these folders of monarch-tensor import PyTorch; those of other wheels give it to programs that they start.
NEED_TORCH = [Path(__file__).parent / "packages" / "monarch-tensor" / "tests" / folder for folder in ("pytorch", "gpu", "bench")]


def pytest_configure(config: pytest.Config) -> None:
    """Restores signals that are ignored under `nohup`, or in the background of a script: programs of tests would inherit that."""
    for number in (signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) == signal.SIG_IGN:
            # This is a handler, because this process continues at the end of its terminal: programs that it starts have the default.
            signal.signal(number, lambda *_: None)
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if collection_path.parent.name == "tests" and not _is_wanted(FOLDERS.get(collection_path.name, collection_path.name), config):
        return True
    if not any(collection_path.is_relative_to(folder) for folder in NEED_TORCH) or importlib.util.find_spec("torch") is not None:
        return None
    named = [Path(config.invocation_params.dir, str(word).partition("::")[0]) for word in config.args]
    if any(path.is_relative_to(folder) for path in named for folder in NEED_TORCH):
        raise pytest.UsageError("PyTorch is missing here: python -m tools.side_venv torch, then python -m tools.with_torch pytest ...")
    return True


def _is_wanted(category: str, config: pytest.Config) -> bool:
    """Whether `-m` may choose tests of this category: the import of all test modules takes half a minute."""
    expression: str = config.option.markexpr
    if not expression or category not in CATEGORIES or not set(re.findall(r"\w+", expression)) <= {*CATEGORIES, "not", "and", "or"}:
        return True
    return bool(eval(expression, {"__builtins__": {}}, {name: name == category for name in CATEGORIES}))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folders = item.path.parts[:-1]
        below = folders[len(folders) - folders[::-1].index("tests") :] if "tests" in folders else ()
        folder = below[0] if below else ""
        category = FOLDERS.get(folder, folder)
        if category not in CATEGORIES:
            raise pytest.UsageError(f"{item.path}: not below tests/{{{','.join(CATEGORIES)}}}/, so the test has no category")
        item.add_marker(category)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    # The time limit of the test stops while its report is made: pytest ends the whole run where the limit interrupts that.
    left, _ = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        report = yield
        if call.excinfo is not None and call.excinfo.type is pytest.fail.Exception and str(call.excinfo.value).startswith("Timeout (>"):
            report.sections.append(("stacks of all processes", _stacks()))
        return report
    finally:
        if left:
            signal.setitimer(signal.ITIMER_REAL, left)


def _stacks() -> str:
    """pytest-timeout shows the threads of this process only. The awaited code is in another process, which lives until the teardown."""
    command = [sys.executable, "-c", "from monarch._core.cli import main; main()", "stack", "--all", "--here"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        return done.stdout + done.stderr
    except subprocess.TimeoutExpired as e:
        return f"`monarch stack` did not end: {e.stdout!r}"
