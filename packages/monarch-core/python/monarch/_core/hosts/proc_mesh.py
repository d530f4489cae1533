"""The module that pickled handles of proc meshes name."""

from __future__ import annotations

from monarch._core.hosts.host_mesh import ProcMesh as ProcMesh
from monarch._core.hosts.host_mesh import received_proc_mesh as received_proc_mesh
