"""The objects of a job on Kubernetes: pure functions of its arguments, without a network."""

from __future__ import annotations

from monarch.job.kubernetes.manifests.job_objects import job_objects as job_objects
from monarch.job.kubernetes.manifests.job_objects import owned as owned
from monarch.job.kubernetes.manifests.job_objects import plan_text as plan_text
from monarch.job.kubernetes.manifests.job_objects import secret_object as secret_object
from monarch.job.kubernetes.manifests.mesh_objects import mesh_objects as mesh_objects

__all__ = ["job_objects", "mesh_objects", "owned", "plan_text", "secret_object"]
