"""What reading the catalog of tables loads, in a new interpreter."""

from __future__ import annotations

import subprocess
import sys


def fresh(code: str) -> str:
    """What a new interpreter prints."""
    return subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True, timeout=25).stdout.strip()


def test_catalog_needs_no_arrow() -> None:
    code = """
import sys
from monarch.telemetry._tables.catalog import TABLES, catalog
heavy = {"pyarrow", "datafusion", "numpy", "dataclasses", "difflib"}
print(len(catalog()) > 1000, sorted(heavy & {*sys.modules}))
TABLES["actors"].schema()
print("pyarrow" in sys.modules, "datafusion" in sys.modules)
"""
    assert fresh(code).splitlines() == ["True []", "True False"]
