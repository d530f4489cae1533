"""Gives every test its category: the name of the folder under `tests/` that it lies in."""

from __future__ import annotations

import pytest

CATEGORIES = ("unit", "process", "net", "fuse", "slurm", "ssh", "k8s", "gpu", "verbs", "bench")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folders = item.path.parts[:-1]
        below = folders[len(folders) - folders[::-1].index("tests") :] if "tests" in folders else ()
        category = below[0] if below else ""
        if category not in CATEGORIES:
            raise pytest.UsageError(f"{item.path}: not below tests/{{{','.join(CATEGORIES)}}}/, so the test has no category")
        item.add_marker(category)
