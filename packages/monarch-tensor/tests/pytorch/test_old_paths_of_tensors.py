"""Import paths of torchmonarch 0.7 that stand for names of monarch.tensor, with monarch-compat."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

COMPAT = Path(__file__).resolve().parents[3] / "monarch-compat"


def test_every_tensor_row_is_the_public_object() -> None:
    path = os.pathsep.join([str(COMPAT / "python"), *filter(None, [os.environ.get("PYTHONPATH")])])
    argv = [sys.executable, str(COMPAT / "tests" / "old_paths_check.py"), "tensor"]
    done = subprocess.run(argv, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=120, check=False)
    assert done.stderr == ""
    assert re.fullmatch(r"\d\d rows; \d+ modules without a home\n", done.stdout), done.stdout
