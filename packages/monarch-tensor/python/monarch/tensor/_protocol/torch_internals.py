"""The names of PyTorch that its documentation does not have: no other module uses any, so that a new release is checked against this one.

Operators and the nodes of a backward use accessors of C, which are bound once.
"""

from __future__ import annotations

from operator import attrgetter, methodcaller
from typing import TYPE_CHECKING, Any

import torch
import torch._ops

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import timedelta

_C: Any = torch._C
_aten = torch.ops.aten

# Operators without a public name.
LOCAL_SCALAR = _aten._local_scalar_dense.default
QUANTIZING = {_aten._make_per_tensor_quantized_tensor.default, _aten._make_per_channel_quantized_tensor.default}

# The number of the backward that runs in this thread; -1 outside of one.
current_graph_task_id: Callable[[], int] = _C._current_graph_task_id
BelowAutograd: Any = _C._AutoDispatchBelowAutograd
DisableTorchDispatch: Any = _C._DisableTorchDispatch

# Tensors.
disabled_torch_function: Any = _C._disabled_torch_function_impl
refuse_data_pointer: Callable[[Any], None] = _C._set_throw_on_mutable_data_ptr
set_conjugate: Callable[[Any, bool], None] = _C._set_conj
set_negative: Callable[[Any, bool], None] = _C._set_neg
make_wrapper: Callable[..., Any] = torch.Tensor._make_wrapper_subclass

# Operators of torch's registry.
OpOverload: Any = torch._ops.OpOverload
schema_of: Callable[[Any], Any] = attrgetter("_schema")
packet_name: Callable[[Any], str] = attrgetter("_overloadpacket.__name__")
# The operator without the Python function around it.
bare_operator: Callable[[Any], Any] = attrgetter("_op")

# Nodes of a backward.
AccumulateGrad: Any = _C._functions.AccumulateGrad
metadata_of: Callable[[Any], Any] = attrgetter("_input_metadata")
sequence_number: Callable[[Any], int] = methodcaller("_sequence_nr")
backward_hooks: Callable[[Any], Mapping[int, Any] | None] = attrgetter("_backward_hooks")
run_backward: Callable[..., Any] = torch.autograd.Variable._execution_engine.run_backward


def storage_id(tensor: Any) -> int:
    """What views of each other have in common."""
    return tensor.untyped_storage()._cdata


# Process groups. The module is loaded with the first group of a worker.


def gloo_options(device: Any, timeout: timedelta, threads: int) -> Any:
    from torch.distributed import ProcessGroupGloo

    options = ProcessGroupGloo._Options()
    options._devices, options._timeout, options._threads = [device], timeout, threads
    return options


def nccl_options(timeout: timedelta) -> Any:
    from torch.distributed import ProcessGroupNCCL

    options = ProcessGroupNCCL.Options()
    options._timeout = timeout
    return options


def set_backend(group: Any, name: str, device: torch.device, kind: Any, backend: Any) -> None:
    """Gives a process group its name and its one backend."""
    group._register_backend(device, kind, backend)
    group._set_default_backend(kind)
    group._set_group_name(name)


def group_tables() -> Any:
    """The object in which functions of torch.distributed look a group up."""
    from torch.distributed import distributed_c10d

    return distributed_c10d._world


def all_gather_bytes(group: Any, made: Any, given: Any) -> Any:
    return group._allgather_base(made, given)
