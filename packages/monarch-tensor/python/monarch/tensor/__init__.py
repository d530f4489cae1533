"""Torch code of one program on every device of a mesh: the public names. Each is loaded on first use.

One operation: the dispatch mode (`_tensors/dispatch.py`) finds the signature of the call in the controller's cache, or propagates the
layouts of the results (`_controller/propagate.py`), and adds a command to the batch (`_controller/outbox.py`). The batch is cast to all
workers, decoded once by each, and executed on the thread of its stream (`_worker`). The controller has layouts only; data are on the
workers.

`ImportError` without torch, and with one outside the range that this wheel is made for.
"""

from __future__ import annotations

from monarch.extension.facade import lazy_names as _lazy_names
from monarch.tensor._torch_range import check_torch

check_torch()

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch.tensor import builtins as builtins
    from monarch.tensor import pipelining as pipelining
    from monarch.tensor import random as random
    from monarch.tensor import timer as timer
    from monarch.tensor._autograd.grad import grad_function as grad_function
    from monarch.tensor._autograd.grad import grad_generator as grad_generator
    from monarch.tensor._functions.recording import coalescing as coalescing
    from monarch.tensor._functions.recording import compile as compile
    from monarch.tensor._functions.remote_function import Remote as Remote
    from monarch.tensor._functions.remote_function import call_on_shard_and_fetch as call_on_shard_and_fetch
    from monarch.tensor._functions.remote_function import remote as remote
    from monarch.tensor._functions.resolvers import function_resolvers as function_resolvers
    from monarch.tensor._objects.opaque_module import OpaqueModule as OpaqueModule
    from monarch.tensor._objects.opaque_object import OpaqueObject as OpaqueObject
    from monarch.tensor._objects.opaque_object import opaque_method as opaque_method
    from monarch.tensor._protocol.meta import set_meta as set_meta
    from monarch.tensor._protocol.opaque_ref import OpaqueRef as OpaqueRef
    from monarch.tensor._tensors.borrow import Borrow as Borrow
    from monarch.tensor._tensors.fetch import fetch_shard as fetch_shard
    from monarch.tensor._tensors.fetch import inspect as inspect
    from monarch.tensor._tensors.fetch import show as show
    from monarch.tensor._tensors.mesh import DeviceMesh as DeviceMesh
    from monarch.tensor._tensors.mesh import MeshSliceTensor as MeshSliceTensor
    from monarch.tensor._tensors.mesh import RemoteProcessGroup as RemoteProcessGroup
    from monarch.tensor._tensors.mesh import Stream as Stream
    from monarch.tensor._tensors.mesh import Tensor as Tensor
    from monarch.tensor._tensors.mesh import get_active_mesh as get_active_mesh
    from monarch.tensor._tensors.mesh import get_active_stream as get_active_stream
    from monarch.tensor._tensors.mesh import no_mesh as no_mesh
    from monarch.tensor._tensors.pytrees import reduce as reduce
    from monarch.tensor._tensors.pytrees import reduce_ as reduce_
    from monarch.tensor._tensors.pytrees import slice_mesh as slice_mesh
    from monarch.tensor._tensors.pytrees import to_mesh as to_mesh
    from monarch.tensor.errors import RemoteException as RemoteException
    from monarch.tensor.errors import TensorMeshError as TensorMeshError
    from monarch.tensor.random import manual_seed as manual_seed
    from monarch.tensor.simulator.simulator import Simulator as Simulator

# Where each name is implemented: generated from the imports above by `python -m tools.generate_docs --write`.
_HOMES = {
    "_autograd.grad": ("grad_function", "grad_generator"),
    "_functions.recording": ("coalescing", "compile"),
    "_functions.remote_function": ("Remote", "call_on_shard_and_fetch", "remote"),
    "_functions.resolvers": ("function_resolvers",),
    "_objects.opaque_module": ("OpaqueModule",),
    "_objects.opaque_object": ("OpaqueObject", "opaque_method"),
    "_protocol.meta": ("set_meta",),
    "_protocol.opaque_ref": ("OpaqueRef",),
    "_tensors.borrow": ("Borrow",),
    "_tensors.fetch": ("fetch_shard", "inspect", "show"),
    "_tensors.mesh": (
        "DeviceMesh",
        "MeshSliceTensor",
        "RemoteProcessGroup",
        "Stream",
        "Tensor",
        "get_active_mesh",
        "get_active_stream",
        "no_mesh",
    ),
    "_tensors.pytrees": ("reduce", "reduce_", "slice_mesh", "to_mesh"),
    "errors": ("RemoteException", "TensorMeshError"),
    "random": ("manual_seed",),
    "simulator.simulator": ("Simulator",),
}
# End of the generated table.

if not TYPE_CHECKING:  # type checkers go by the imports above
    __all__, __getattr__, __dir__ = _lazy_names(__name__, _HOMES, modules=["builtins", "pipelining", "random", "timer"])
