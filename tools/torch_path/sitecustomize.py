"""Appends folders to the path of modules, behind all others. Every interpreter imports this module at its start, once its own packages are
on the path; `python -m tools.with_torch` sets the variable.
"""

import os
import sys

sys.path.extend(filter(None, os.environ.get("TORCH_SITE_PACKAGES", "").split(os.pathsep)))
