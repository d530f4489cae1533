"""SkyPilotJob: hosts from any Kubernetes cluster, a cloud, or SLURM, by way of SkyPilot.

The plan is one task (`job.plan()` prints it as YAML) whose run command is a worker on every node. SkyPilot itself runs in a process of its
own, with any interpreter that it is installed for: its pins and ours may exclude each other.

The class is loaded on first use: every process that asks for a setting of any wheel loads the settings in this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from monarch.extension.facade import lazy_names as _lazy_names

if TYPE_CHECKING:
    from monarch.job.skypilot.job import SkyPilotJob as SkyPilotJob

if not TYPE_CHECKING:  # type checkers go by the import above
    __all__, __getattr__, __dir__ = _lazy_names(__name__, {"job": ("SkyPilotJob",)})
