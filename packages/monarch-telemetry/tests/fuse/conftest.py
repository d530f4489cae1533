"""Programs of these tests run as those of the category `process`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "process"))
