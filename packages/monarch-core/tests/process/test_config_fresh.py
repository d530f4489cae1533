"""Configuration in a new interpreter: the cost of the import, and the reading of the environment."""

from __future__ import annotations

import os
import subprocess
import sys

HEAVY = {"asyncio", "contextlib", "dataclasses", "enum", "inspect", "logging", "re", "threading", "typing", "warnings"}


def fresh(code: str, **environment: str) -> str:
    """The output of a new interpreter."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environment}
    argv = [sys.executable, "-S", "-c", code]
    return subprocess.run(argv, env=environ, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def test_import_is_light() -> None:
    assert fresh(f"import sys, monarch.config; print(*sorted({HEAVY!r} & {{*sys.modules}}))") == ""


def test_reading_a_value_is_light() -> None:
    assert fresh(f"import sys, monarch._core.config.config as c; c.value('exit_grace'); print(*sorted({HEAVY!r} & {{*sys.modules}}))") == ""


def test_environment_is_read_without_a_configuration_call() -> None:
    code = "from monarch.config import get_global_config as g; print(g()['tail_log_lines'], g()['process_exit_timeout'])"
    assert fresh(code, MONARCH_TAIL_LOG_LINES="3", HYPERACTOR_PROCESS_EXIT_TIMEOUT="90s") == "3 1m 30s"
