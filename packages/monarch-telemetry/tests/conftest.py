"""What tests of several categories import: `from support.made_up_job import rows`, and `eventually`, which is core's."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path += [str(HERE), str(HERE.parents[1] / "monarch-core" / "tests" / "process")]
