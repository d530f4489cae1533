"""The demo of the README with its dashboard: the address is printed, the page stays for a person, and nothing waits for a pipe."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pexpect
import pytest

from tools.project import ROOT

# The demo takes some seconds, and more on a busy machine.
pytestmark = pytest.mark.timeout(120)
ARGV = ["-W", "error", str(ROOT / "examples" / "digits.py"), "--quick", "--dashboard"]
ADDRESS = r"dashboard: +(http://127\.0\.0\.1:\d+)/#([\w-]{43})"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "MONARCH_HOME": str(tmp_path / "home"), "NO_COLOR": "1"}


def test_dashboard_stays_until_enter(tmp_path: Path, environment: dict[str, str]) -> None:
    subprocess.run([sys.executable, "-m", "tools.build_dashboard"], cwd=ROOT, check=True, timeout=100)
    demo = pexpect.spawn(sys.executable, ARGV, env=environment, cwd=str(tmp_path), encoding="utf-8", timeout=90)
    try:
        demo.expect(ADDRESS)
        url, token = str(demo.match[1]), str(demo.match[2])
        demo.expect("passed")
        demo.expect("Press Enter")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, timeout=20) as page:
            assert "<title>" in page.read().decode()
        request = urllib.request.Request(f"{url}/metrics", headers={"Authorization": f"Bearer {token}"})
        with opener.open(request, timeout=20) as answer:
            assert "proc_mesh_active_procs" in answer.read().decode()
        demo.sendline("")
        demo.expect(pexpect.EOF)
        demo.wait()
        assert demo.exitstatus == 0
    finally:
        demo.close(force=True)


def test_unattended_demo_ends_its_dashboard(tmp_path: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, *ARGV],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        timeout=100,
        check=False,
    )
    # The usual ports may be used by another job of this machine.
    assert (done.returncode, [line for line in done.stderr.splitlines() if " is taken; " not in line]) == (0, []), done.stdout
    assert re.search(ADDRESS, done.stdout) and done.stdout.endswith("passed\n")
    assert not [*(tmp_path / "home" / "jobs").glob("*")]
