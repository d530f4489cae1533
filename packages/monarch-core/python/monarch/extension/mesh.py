"""Meshes: their members, those that this process owns, the replacement of lost hosts, and methods that other wheels implement.

Methods are entry points of the group `monarch.mesh`, typed by `MeshMethods`.
"""

from monarch._core.call.actor_mesh import EndpointCall
from monarch._core.call.port import ranked_port
from monarch._core.call.send_target import SendTarget
from monarch._core.extension.attached_hosts import (
    explain_failure,
    explain_loss,
    host_names,
    lost_gateway,
    lost_hosts,
    stop_all_procs,
    stop_own_procs,
)
from monarch._core.extension.healing import HealedHosts, Healer, healer_of, set_healer
from monarch._core.extension.joining import joined_by
from monarch._core.extension.mesh import MeshMethods, MeshView, host_mesh_number, mesh_view
from monarch._core.extension.owned_meshes import OwnedMesh, owned_meshes, stop_mesh
from monarch._core.hosts.gateway import join_gateway

__all__ = [
    "EndpointCall",
    "HealedHosts",
    "Healer",
    "MeshMethods",
    "MeshView",
    "OwnedMesh",
    "SendTarget",
    "explain_failure",
    "explain_loss",
    "healer_of",
    "host_mesh_number",
    "host_names",
    "join_gateway",
    "joined_by",
    "lost_gateway",
    "lost_hosts",
    "mesh_view",
    "owned_meshes",
    "ranked_port",
    "set_healer",
    "stop_all_procs",
    "stop_mesh",
    "stop_own_procs",
]
