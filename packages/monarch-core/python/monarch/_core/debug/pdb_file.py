"""The file of `ThreadPdb`, for processes that load it without this package."""

from __future__ import annotations

import os

PDB_FILE = os.path.join(os.path.dirname(__file__), "thread_pdb.py")
