"""Where the modules are that processes of tests import."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
# The second has what runs scripts.
sys.path += [str(HERE), str(HERE.parents[1] / "monarch-core" / "tests" / "process")]
