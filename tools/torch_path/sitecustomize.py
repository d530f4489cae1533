"""Puts folders behind all others on the path of modules. Every interpreter imports this at its start, once its own packages are on the
path; `python -m tools.with_torch` sets the variable."""

import os
import sys

sys.path.extend(filter(None, os.environ.get("TORCH_SITE_PACKAGES", "").split(os.pathsep)))
