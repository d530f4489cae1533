"""What tests of several categories import: `from support.made_up_job import rows`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
