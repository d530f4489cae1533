"""The errors of this wheel, by its entry point of the group `monarch.errors`."""

from __future__ import annotations

from monarch.extension import ErrorRow
from monarch.tensor.errors import RemoteException, TensorMeshError

ROWS = (
    ErrorRow(
        "tensor_mesh",
        TensorMeshError,
        "data of a mesh tensor are needed on the controller, an operator has no fake implementation, or the mesh has ended",
        "{what}",
    ),
    ErrorRow(
        "tensor_remote",
        RemoteException,
        "an operation failed on a worker; the first fetch of its result, or of one computed from it, raises this",
        "A remote function has failed asynchronously on rank {rank}.",
    ),
)
