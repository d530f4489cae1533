"""Programs of `monarch.tensor` without devices: checked, estimated, drawn."""

from __future__ import annotations

from monarch.tensor.simulator.costs import CostModel, Link
from monarch.tensor.simulator.simulator import Simulator, estimate, simulated
from monarch.tensor.simulator.timeline import Timeline, Totals
from monarch.tensor.simulator.work import Work

__all__ = ["CostModel", "Link", "Simulator", "Timeline", "Totals", "Work", "estimate", "simulated"]
