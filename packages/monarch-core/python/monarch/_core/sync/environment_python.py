"""The Python version of an environment, from the records of the tools that made it: no program of it is run."""

from __future__ import annotations

import os
import re

# `version` is written by venv, `version_info` by virtualenv and uv.
_CONFIG = re.compile(r"^\s*version(?:_info)?\s*=\s*(\d+)\.(\d+)", re.MULTILINE)
# conda's record of its package python.
_RECORD = re.compile(r"python-(\d+)\.(\d+)\.[^-]+-[^-]+\.json")


def environment_python(prefix: str) -> tuple[int, int] | None:
    """The minor version, such as (3, 11), of the Python of the environment at `prefix`; None if neither kind of tool has recorded one."""
    try:
        with open(os.path.join(prefix, "pyvenv.cfg"), encoding="utf-8", errors="replace") as file:
            found = _CONFIG.search(file.read())
    except OSError:
        found = None
    if found is None:
        try:
            names = os.listdir(os.path.join(prefix, "conda-meta"))
        except OSError:
            names = []
        found = next(filter(None, map(_RECORD.fullmatch, names)), None)
    return None if found is None else (int(found[1]), int(found[2]))
