"""Torch code of one program on every device of a mesh: the public names. Each is loaded on first use.

One operation: the dispatch mode (`dispatch.py`) finds the signature of the call in the controller's cache, or propagates the layouts of the
results (`propagate.py`), and adds a command to the batch (`outbox.py`). The batch is cast to all workers, decoded once by each, and
executed on the thread of its stream (`worker/`). The controller has layouts only; data are on the workers.

`ImportError` without torch, and with one outside the range that this wheel is made for.
"""

from __future__ import annotations

from monarch.tensor._torch_range import check_torch

check_torch()

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch.tensor import builtins as builtins
    from monarch.tensor import pipelining as pipelining
    from monarch.tensor import random as random
    from monarch.tensor import timer as timer
    from monarch.tensor.active import get_active_mesh as get_active_mesh
    from monarch.tensor.active import get_active_stream as get_active_stream
    from monarch.tensor.errors import RemoteException as RemoteException
    from monarch.tensor.errors import TensorMeshError as TensorMeshError
    from monarch.tensor.fetch import fetch_shard as fetch_shard
    from monarch.tensor.fetch import inspect as inspect
    from monarch.tensor.fetch import show as show
    from monarch.tensor.grad import grad_function as grad_function
    from monarch.tensor.grad import grad_generator as grad_generator
    from monarch.tensor.mesh import DeviceMesh as DeviceMesh
    from monarch.tensor.mesh import RemoteProcessGroup as RemoteProcessGroup
    from monarch.tensor.mesh import no_mesh as no_mesh
    from monarch.tensor.meta import set_meta as set_meta
    from monarch.tensor.moves import MeshSliceTensor as MeshSliceTensor
    from monarch.tensor.moves import slice_mesh as slice_mesh
    from monarch.tensor.moves import to_mesh as to_mesh
    from monarch.tensor.opaque_module import OpaqueModule as OpaqueModule
    from monarch.tensor.opaque_object import OpaqueObject as OpaqueObject
    from monarch.tensor.opaque_object import opaque_method as opaque_method
    from monarch.tensor.opaque_ref import OpaqueRef as OpaqueRef
    from monarch.tensor.random import manual_seed as manual_seed
    from monarch.tensor.recording import coalescing as coalescing
    from monarch.tensor.recording import compile as compile
    from monarch.tensor.reductions import reduce as reduce
    from monarch.tensor.reductions import reduce_ as reduce_
    from monarch.tensor.remote_function import Remote as Remote
    from monarch.tensor.remote_function import call_on_shard_and_fetch as call_on_shard_and_fetch
    from monarch.tensor.remote_function import remote as remote
    from monarch.tensor.resolvers import function_resolvers as function_resolvers
    from monarch.tensor.simulator.simulator import Simulator as Simulator
    from monarch.tensor.stream import Borrow as Borrow
    from monarch.tensor.stream import Stream as Stream
    from monarch.tensor.tensor import Tensor as Tensor

# Where each name is implemented: generated from the imports above by `python -m tools.generate_docs --write`.
_HOMES = {
    "active": ("get_active_mesh", "get_active_stream"),
    "errors": ("RemoteException", "TensorMeshError"),
    "fetch": ("fetch_shard", "inspect", "show"),
    "grad": ("grad_function", "grad_generator"),
    "mesh": ("DeviceMesh", "RemoteProcessGroup", "no_mesh"),
    "meta": ("set_meta",),
    "moves": ("MeshSliceTensor", "slice_mesh", "to_mesh"),
    "opaque_module": ("OpaqueModule",),
    "opaque_object": ("OpaqueObject", "opaque_method"),
    "opaque_ref": ("OpaqueRef",),
    "random": ("manual_seed",),
    "recording": ("coalescing", "compile"),
    "reductions": ("reduce", "reduce_"),
    "remote_function": ("Remote", "call_on_shard_and_fetch", "remote"),
    "resolvers": ("function_resolvers",),
    "simulator.simulator": ("Simulator",),
    "stream": ("Borrow", "Stream"),
    "tensor": ("Tensor",),
}
# End of the generated table.
_HOME = {name: home for home, names in _HOMES.items() for name in names}
# Modules with names of their own.
_MODULES = ("builtins", "pipelining", "random", "timer")
_NAMES = sorted((*_HOME, *_MODULES))

if not TYPE_CHECKING:  # type checkers go by the imports above
    __all__ = [*_NAMES]  # noqa: PLE0604


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"monarch.tensor.{name}")
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'monarch.tensor' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"monarch.tensor.{home}"), name)
    return found


def __dir__() -> list[str]:
    return list(_NAMES)
