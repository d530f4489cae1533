"""What `monarch status` prints."""

from __future__ import annotations

import pytest

from monarch.job import HostStatus, JobStatus
from monarch.job._cli.job import _show_status


def test_details_of_several_lines_stand_below_their_rows(capsys: pytest.CaptureFixture[str]) -> None:
    hosts = [
        HostStatus("a", 0, "n0", "lost", None, "its worker ended with exit code 3\nTraceback:\n  no such file"),
        HostStatus("a", 1, "n1", "joined", "tcp://n1:1", ""),
    ]
    _show_status("slurm job x", JobStatus("ended", "FAILED, exit code 3\n/jobs/1.out:\nlast line", hosts), False)
    assert capsys.readouterr().out.splitlines() == [
        "slurm job x: ended (FAILED, exit code 3)",
        "  /jobs/1.out:",
        "  last line",
        "HOST  NAME  PHASE   ADDRESS     DETAIL",
        "a[0]  n0    lost    -           its worker ended with exit code 3",
        "    Traceback:",
        "      no such file",
        "a[1]  n1    joined  tcp://n1:1",
    ]
