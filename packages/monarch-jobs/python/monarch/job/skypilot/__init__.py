"""SkyPilotJob: hosts from any Kubernetes cluster, a cloud, or SLURM, by way of SkyPilot.

The plan is one task (`job.plan()` prints it as YAML) whose run command is a worker on every node. SkyPilot itself runs in a process of its
own, with any interpreter that it is installed for: its pins and ours may exclude each other.
"""

from __future__ import annotations

from monarch.job.skypilot.job import SkyPilotJob as SkyPilotJob

__all__ = ["SkyPilotJob"]
