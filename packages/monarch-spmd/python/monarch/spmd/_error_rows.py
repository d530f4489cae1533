"""The errors of this wheel, by its entry point of the group `monarch.errors`."""

from __future__ import annotations

from monarch.extension import ErrorRow
from monarch.spmd.errors import LaunchArgumentError, SPMDError, SPMDFailure

ROWS = (
    ErrorRow("spmd_failed", SPMDError, "a mesh without ranks, a program that hosts lack; the base of what `monarch.spmd` raises", "{what}"),
    ErrorRow("spmd_run_failed", SPMDFailure, "a rank of a run failed, and its policy allows no further attempt", "{what}"),
    ErrorRow("snapshots_unavailable", SPMDError, "`Snapshots` in a process that no run has started, or in a fork of one", "{what}"),
    ErrorRow("snapshot_failed", SPMDError, "a state could not be copied or had back: too large, or its hosts are lost", "{what}"),
    ErrorRow("snapshot_altered", SPMDError, "every copy of a state has other bytes than the rank has saved", "{what}"),
    ErrorRow("launch_argument", LaunchArgumentError, "an option of a launch is unknown, or has a value that it does not allow", "{what}"),
)
