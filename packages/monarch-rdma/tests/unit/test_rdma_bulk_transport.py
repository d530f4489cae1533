"""The entry point by which large messages between hosts are fetched."""

from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

from monarch._core.hosts.bulk_transport import GROUP


def test_entry_point_is_a_bulk_transport() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    ((name, value),) = project["entry-points"][GROUP].items()
    transport = EntryPoint(name, value, GROUP).load()
    # The window of credit is as large: smaller ones may follow each other closely.
    assert transport.least() == 8 << 20
