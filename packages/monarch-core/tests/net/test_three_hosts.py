"""The example that trains on three hosts, each with a network of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.netns.requirement import need_namespaces

EXAMPLE = Path(__file__).resolve().parents[4] / "examples" / "three_hosts.py"


@pytest.mark.timeout(120)  # of which importing scikit-learn on a busy machine is most
def test_training_continues_after_the_loss_of_a_host(tmp_path: Path) -> None:
    need_namespaces()
    argv = [sys.executable, "-W", "error", str(EXAMPLE), "--quick", "--namespaces"]
    ran = subprocess.run(argv, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stderr == ""
    assert ran.stdout.startswith("half way: tcp://h3:22222 is cut off\n")
    assert re.search(r"^lost host: +h3 at step 84: silent for \S+, detected \S+ s after it was cut off$", ran.stdout, re.MULTILINE)
    assert "identical on all 2 hosts that are left" in ran.stdout
    accuracy = re.search(r"^held-out accuracy: +([\d.]+)%", ran.stdout, re.MULTILINE)
    assert accuracy and float(accuracy[1]) >= 95
