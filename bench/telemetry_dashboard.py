"""The dashboard in a browser on this machine: its first page, and a list of 10,000 actors that scrolls.

The application is the real one, over the synthetic job of the tests. The tests' walk through all pages also measures. Needs Debian's
chromium (`bash tools/system_packages.sh browser`).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "packages" / "monarch-telemetry" / "tests"
TIMEOUT_S = 240


def driven(url: str, token: str) -> dict[str, Any]:
    """The measurements of one walk through all pages. `RuntimeError` if a check of it failed, as the numbers are then invalid."""
    from tools import build_dashboard

    chromium = shutil.which("chromium")
    if chromium is None:
        raise RuntimeError("there is no chromium")
    with tempfile.TemporaryDirectory() as folder:
        argv = [build_dashboard.node(), str(build_dashboard.SOURCES / "browser" / "drive.mjs"), url, folder, chromium]
        environment = {**os.environ, "DASHBOARD_TOKEN": token}
        with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True) as driver:
            try:
                output, _ = driver.communicate(timeout=TIMEOUT_S)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(driver.pid, signal.SIGKILL)
    found = json.loads(output)
    failed = [name for name in ("the token leaves the URL", "10,000 actors scroll") if found["checks"].get(name) is not None]
    if failed:
        raise RuntimeError(f"the drive failed at {failed[0]}: {found['checks'][failed[0]]}")
    return found["numbers"]


def dashboard(rounds: int) -> Iterator[str]:
    """The lines of the part."""
    subprocess.run([sys.executable, "-m", "tools.build_dashboard"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    sys.path += [str(ROOT), str(TESTS)]
    serving: Any = import_module("support.dashboard_server").serving
    rounds = min(rounds, 5)
    with serving() as served:
        found = [driven(served.url, served.tokens.admin) for _ in range(rounds)]
    for name in ("cold", "warm"):
        paint, data = (statistics.median(one[name][what] for one in found) for what in ("paint", "data"))
        yield f"first page, {name} | first paint {paint:.0f} ms, first data {data:.0f} ms after the navigation began"
    longest = sorted(one["longest_frame_ms"] for one in found)
    yield f"tree of 10,000 actors, 60 steps of 4,000 pixels | longest frame {statistics.median(longest):.0f} ms, worst run {longest[-1]}"
