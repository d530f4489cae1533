"""Meshes: their members, those that this process owns, and methods that other wheels implement.

Methods are entry points of the group `monarch.mesh`, typed by `MeshMethods`.
"""

from monarch._core.call.mesh_methods import EndpointCall
from monarch._core.extension.mesh import MeshMethods, MeshView, mesh_view
from monarch._core.extension.owned_meshes import OwnedMesh, owned_meshes, stop_mesh

__all__ = ["EndpointCall", "MeshMethods", "MeshView", "OwnedMesh", "mesh_view", "owned_meshes", "stop_mesh"]
