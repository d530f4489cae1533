"""The dashboard in Debian's chromium, over the real application and a made-up job of 10,000 actors.

`DASHBOARD_IMAGES=FOLDER` keeps the screenshots, as for docs/images.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from support.dashboard_server import Served, serving

from tools import build_dashboard
from tools.project import ROOT

PAGES = ("overview", "topology", "explorer", "logs", "metrics", "sql", "diagnose", "stacks", "timeline", "audit")
CHECKS = (
    "the token leaves the URL",
    "overview",
    "topology",
    "explorer by keyboard only",
    "10,000 actors scroll",
    "hosts and processes",
    "a flame graph of a proc",
    "an action is confirmed",
    "logs",
    "charts",
    "a drag in a chart chooses the time",
    "sql",
    "a diagnosis is asked for on demand only",
    "stacks",
    "timeline",
    "audit",
    "a silent host is shown with the age of its data",
    "a hidden tab asks for nothing",
    "dark",
    "without a token it is asked for",
)
# Chromium starts slowly on a busy machine; the run through all pages counts for the first test.
pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def served() -> Generator[Served, None, None]:
    subprocess.run([sys.executable, "-m", "tools.build_dashboard"], cwd=ROOT, check=True, timeout=180)
    with serving() as server:
        yield server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    kept = os.environ.get("DASHBOARD_IMAGES")
    return Path(kept).resolve() if kept else tmp_path_factory.mktemp("images")


@pytest.fixture(scope="module")
def report(served: Served, folder: Path) -> dict[str, Any]:
    """What a drive over all pages found."""
    chromium = shutil.which("chromium")
    assert chromium, "there is no chromium: bash tools/system_packages.sh browser"
    script = build_dashboard.SOURCES / "browser" / "drive.mjs"
    argv = [build_dashboard.node(), str(script), served.url, str(folder), chromium]
    environment = {**os.environ, "DASHBOARD_TOKEN": served.tokens.admin}
    # In its own session: chromium also ends at the time limit.
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True) as driver:
        try:
            output, _ = driver.communicate(timeout=220)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)
    assert driver.returncode == 0
    found: dict[str, Any] = json.loads(output)
    print(found["numbers"])
    return found


@pytest.mark.parametrize("name", CHECKS)
def test_check_of_a_page_passes(report: dict[str, Any], name: str) -> None:
    assert report["checks"][name] is None


def test_all_checks_are_named_here(report: dict[str, Any]) -> None:
    assert list(report["checks"]) == list(CHECKS)


def test_no_page_has_an_error_in_the_console(report: dict[str, Any]) -> None:
    # A request without a token and a wrong statement are errors that the checks cause; a late node is caused by a busy machine.
    expected = ("status of 40", "status of 504")
    assert [line for line in report["errors"] if not any(part in line for part in expected)] == []


def test_nothing_is_asked_of_another_server(report: dict[str, Any]) -> None:
    assert report["foreign"] == []


def test_every_answer_has_the_strict_policy(report: dict[str, Any]) -> None:
    assert report["withoutPolicy"] == []


def test_action_reaches_the_job_once(report: dict[str, Any], served: Served) -> None:
    assert served.actions == [("stop_mesh", "<root>.<loader>")]


def test_each_page_has_a_picture(report: dict[str, Any], folder: Path) -> None:
    assert [page for page in PAGES if not (folder / f"dashboard_{page}.png").is_file()] == []
