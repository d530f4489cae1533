"""SlurmJob: hosts from a SLURM cluster.

One sbatch script (`job.plan()` prints it) starts a worker on every node; where each listens is published in a folder that client and nodes
share.
"""

from __future__ import annotations

from monarch.job.slurm.job import SlurmJob as SlurmJob

__all__ = ["SlurmJob"]
