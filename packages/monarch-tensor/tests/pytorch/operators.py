"""Calls of torch's operators with the samples that torch's own tests have for them, on this process and on a mesh of two ranks."""

from __future__ import annotations

import functools
import importlib
import itertools
import re
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree

from monarch import tensor as mt

SAMPLES = 2
# The seed that functions of torch's samples set themselves, on the controller.
SEED = 42
# The name of an operator that needs data, or has no fake implementation.
_NAMED = re.compile(r"[a-z_]+\.\w+\.\w+[: ]|a number or truth value of it \(`item\(\)`")
_TYPES = (torch.float32, torch.int64, torch.complex64, torch.float8_e4m3fn)


class Sample(NamedTuple):
    """The arguments of one call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


Call = Callable[[Sample], Any]


class Problem(Exception):
    """The mesh and this process do not agree."""


@contextmanager
def quiet() -> Generator[None]:
    """Without the warnings of operators about their arguments: the samples are torch's own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@functools.cache
def op_infos() -> list[Any]:
    """Torch's descriptions of its operators."""
    with quiet():
        return list(importlib.import_module("torch.testing._internal.common_methods_invocations").op_db)


def full_name(info: Any) -> str:
    return f"{info.name}.{info.variant_test_name}" if info.variant_test_name else str(info.name)


def type_of(info: Any) -> Any:
    """The type of the samples: that of most, or else one that the operator has on this device; None if there is none."""
    return next((t for t in _TYPES if t in info.supported_dtypes("cpu")), None)


def samples(info: Any, dtype: Any, requires_grad: bool = False) -> list[Sample]:
    """The first few; none where the operator has none of this type."""
    if dtype not in info.supported_dtypes("cpu"):
        return []
    if requires_grad and not (info.supports_autograd and (dtype.is_floating_point or dtype.is_complex)):
        return []
    torch.manual_seed(0)
    found = itertools.islice(info.sample_inputs("cpu", dtype, requires_grad=requires_grad), SAMPLES)
    return [Sample((one.input, *one.args), dict(one.kwargs)) for one in found]


def tensors_of(value: Any) -> list[Any]:
    return [v for v in _pytree.tree_leaves(value) if isinstance(v, torch.Tensor)]


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    return _pytree.tree_map_only(torch.Tensor, function, value)


def copied(value: Any) -> Any:
    """Tensors of this process with memory of their own, and the strides that they had."""

    def copy(tensor: Any) -> Any:
        made = _memory(tensor).clone().as_strided(tensor.shape, tensor.stride())
        return made.requires_grad_(tensor.requires_grad)

    return _mapped(copy, value)


def brought(value: Any) -> Any:
    """The same on the active mesh."""

    def bring(tensor: Any) -> Any:
        with mt.no_mesh.activate():
            plain = tensor.is_contiguous()
            memory = tensor.detach() if plain else _memory(tensor)
        made = torch.ops.aten.lift_fresh(memory)
        return (made if plain else made.as_strided(tensor.shape, tensor.stride())).requires_grad_(tensor.requires_grad)

    return _mapped(bring, value)


def _memory(tensor: Any) -> Any:
    """The memory of a tensor, from its first element to its last."""
    plain = tensor.detach()
    size = 1 + sum((n - 1) * s for n, s in zip(plain.shape, plain.stride(), strict=True)) if plain.numel() else 0
    return plain.as_strided((size,), (1,))


def fake_failure(call: Call, sample: Sample) -> Exception | None:
    """What the call raises for tensors without data, if it does."""
    mode = FakeTensorMode()
    fakes = _mapped(lambda t: mode.from_tensor(t.detach()).requires_grad_(t.requires_grad), sample)
    with mode:
        try:
            if any(t.layout is not torch.strided for t in tensors_of(call(fakes))):
                return TypeError("a result is sparse")
        except Exception as e:
            return e
    return None


@mt.remote
def _seed_ranks() -> None:
    torch.manual_seed(SEED)


def seed() -> None:
    """Sets the generator of this process, and those of the active mesh, if there is one."""
    torch.manual_seed(SEED)
    with suppress(mt.TensorMeshError):
        _seed_ranks.broadcast()


# The calls of one description


def plain_calls(info: Any) -> list[tuple[str, Call]]:
    """The operator, its variant in place, and that with `out`."""

    def plain(sample: Sample) -> Any:
        return info(*sample.args, **sample.kwargs)

    def in_place(sample: Sample) -> Any:
        out = info.inplace_variant(*sample.args, **sample.kwargs)
        return out, sample.args[0], out is sample.args[0]

    def with_out(sample: Sample) -> Any:
        made = plain(sample)
        empty: list[Any] = [torch.empty_like(t) for t in tensors_of(made)]
        out = empty[0] if isinstance(made, torch.Tensor) else tuple(empty)
        seed()
        result = info(*sample.args, **sample.kwargs, out=out)
        return result, out

    found = [("", plain)]
    if info.inplace_variant is not None:
        found.append((" in place", in_place))
    if info.supports_out:
        found.append((" with out=", with_out))
    return found


def gradient_calls(info: Any) -> list[tuple[str, Call]]:
    """The gradients of all arguments that require them, for ones as those of all results."""

    def call(sample: Sample) -> Any:
        out = [t for t in tensors_of(info(*sample.args, **sample.kwargs)) if t.requires_grad]
        given = [t for t in tensors_of(sample) if t.requires_grad]
        return torch.autograd.grad(out, given, [torch.ones_like(t) for t in out], allow_unused=True)

    return [(" backward", call)]


# The comparison


def compare(mesh: Any, call: Call, sample: Sample, values: bool = True, strides: bool = True) -> bool:
    """`Problem` where the mesh and this process differ. False where neither has a result to be compared."""
    seed()
    try:
        expected = call(copied(sample))
    except Exception:
        return False
    try:
        with mesh.activate():
            seed()
            got = call(brought(sample))
    except mt.TensorMeshError as e:
        if not _NAMED.match(str(e)):
            raise Problem(f"{e} names no operator") from e
        if fake_failure(call, sample) is None:
            raise Problem(f"tensors without data go through it, and the mesh raised {e}") from e
        return False
    _agree(expected, got, values, strides)
    return True


def _agree(expected: Any, got: Any, values: bool, strides: bool) -> None:
    wanted, spec = _pytree.tree_flatten(expected)
    leaves, other_spec = _pytree.tree_flatten(got)
    if spec != other_spec:
        raise Problem(f"a result of another form: {other_spec}, expected {spec}")
    for one, other in zip(wanted, leaves, strict=True):
        if isinstance(one, torch.Tensor) and isinstance(other, mt.Tensor):
            if (one.shape, one.dtype) != (other.shape, other.dtype):
                raise Problem(f"{other!r}, expected {one.dtype}{list(one.shape)}")
            if strides and strides_of(one) != strides_of(other):
                raise Problem(f"strides {other.stride()} of {list(other.shape)}, expected {one.stride()}")
            if (one.is_conj(), one.is_neg()) != (other.is_conj(), other.is_neg()):
                raise Problem(f"is_conj() {other.is_conj()}, is_neg() {other.is_neg()}")
        elif one != other:
            raise Problem(f"{other!r}, expected {one!r}")
    if not values:
        return
    reference = [t.detach() for t in tensors_of(wanted)]
    for rank in (0, 1):
        found = mt.inspect(tensors_of(leaves), gpus=rank)
        try:
            torch.testing.assert_close(found, reference, equal_nan=True, check_stride=False)
        except AssertionError as e:
            raise Problem(f"rank {rank}: {e}") from e


def strides_of(tensor: Any) -> list[int]:
    """The strides that count."""
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1] if tensor.numel() else []
