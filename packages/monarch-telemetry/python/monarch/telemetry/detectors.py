"""The types of detectors of `monarch diagnose`, for other wheels: entry points of the group `monarch.detector` refer to a `Detector`."""

from monarch.telemetry._diagnose.finding import Detector, Fact, Finding
from monarch.telemetry._diagnose.snapshot import Snapshot
from monarch.telemetry._diagnose.wait_graph import WaitGraph

__all__ = ["Detector", "Fact", "Finding", "Snapshot", "WaitGraph"]
