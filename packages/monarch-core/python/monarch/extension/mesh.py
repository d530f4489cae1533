"""Methods of meshes that other wheels implement: entry points of the group `monarch.mesh`, typed by `MeshMethods`."""

from monarch._core.call.mesh_methods import EndpointCall
from monarch._core.extension.mesh import MeshMethods, MeshView, mesh_view

__all__ = ["EndpointCall", "MeshMethods", "MeshView", "mesh_view"]
