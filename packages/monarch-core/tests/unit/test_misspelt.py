"""Environment variables with names like those of settings."""

from __future__ import annotations

import subprocess

import pytest

from monarch._core.config.config import warn_misspelt
from monarch._core.config.known_settings import KNOWN, declare
from monarch._core.config.misspelt import OTHERS, misspelt
from tools.project import ROOT


def test_misspelt_variable_leads_to_the_closest_setting() -> None:
    assert misspelt(["MONARCH_TAIL_LOG_LINE", "MONARCH_ORPHAN_TIMEOUT", "PATH"]) == {
        "MONARCH_ORPHAN_TIMEOUT": "MONARCH_MESH_ORPHAN_TIMEOUT",
        "MONARCH_TAIL_LOG_LINE": "MONARCH_TAIL_LOG_LINES",
    }
    assert misspelt(["MONARCH_RDMA_MAX_CHUNK_SIZE"]) == {"MONARCH_RDMA_MAX_CHUNK_SIZE": "MONARCH_RDMA_MAX_CHUNK_SIZE_MB"}


def test_variables_of_settings_and_programs_are_left_alone() -> None:
    declare()
    assert misspelt(variable for setting in KNOWN.values() for variable in setting.variables) == {}
    # Kubernetes sets such variables for a service with the name `monarch`.
    assert misspelt(["MONARCH_PORT", "MONARCH_SERVICE_HOST", "MONARCH_PORT_80_TCP", "TAIL_LOG_LINE", "MONARCH_"]) == {}


def test_own_variables_look_like_no_setting() -> None:
    """A new variable with a name like that of a setting belongs into `OTHERS`."""
    argv = ["git", "grep", "-hoE", r"\bMONARCH_[A-Z0-9_]*[A-Z0-9]\b", "--", "packages", "plugins", "tools", "bench", ":!packages/*/tests/*"]
    found = set(subprocess.run(argv, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split())
    assert found >= OTHERS and misspelt(found) == {}


def test_warning_is_logged_per_variable(caplog: pytest.LogCaptureFixture) -> None:
    warn_misspelt(["MONARCH_TAIL_LOG_LINE", "MONARCH_HOME"])
    assert [(record.name, record.getMessage()) for record in caplog.records] == [
        (
            "monarch.config",
            "environment variable MONARCH_TAIL_LOG_LINE has no effect: the setting with the closest name is MONARCH_TAIL_LOG_LINES",
        )
    ]
