"""Bad links and lost hosts of a real job: what `monarch diagnose` finds on the host of its client."""

from __future__ import annotations

import pytest
from eventually import eventually

from bench.faults.catalog import OF_HOSTS
from bench.faults.measure import look, running
from bench.faults.program import Fault

# On a busy machine: four hosts start.
pytestmark = pytest.mark.timeout(180)
# A slow link is found only while data waits in both looks.
TESTED = [fault for fault in OF_HOSTS if fault.name != "slow_link"]


@pytest.mark.parametrize("fault", TESTED, ids=lambda one: one.name)
def test_cause_of_a_fault_between_hosts_is_first(fault: Fault) -> None:
    if not fault.is_possible():
        pytest.skip(f"needs {fault.missing()}")
    with running(fault) as job:
        eventually(f"the cause of {fault.name} is found", lambda: look(fault, job).place == 1, seconds=120)
