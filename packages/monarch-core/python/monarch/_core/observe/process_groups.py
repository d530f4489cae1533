"""The process groups of `torch.distributed` in this process: the number of collectives that each has begun, and the calls in progress.

The groups count their collectives themselves, and a call in progress is a frame of a thread, which has the tensor. Both are read when the
stacks are taken: before that a process pays nothing, and one without `torch.distributed` never does.
"""

from __future__ import annotations

import sys
from zlib import crc32

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

_C10D = "torch.distributed.distributed_c10d"
# The most groups of a process, and the most frames of a thread.
_MOST_GROUPS = 64
_MOST_FRAMES = 100
# Arguments of collectives: the first that is a tensor, or a list of tensors, stands for the call. Ranks pass lists of different length for
# the results, which come last.
_TENSORS = ("tensor", "input_tensor", "input", "input_tensor_list", "scatter_list", "output", "output_tensor")
_ROOTS = ("src", "dst", "group_src", "group_dst")
_MOST_TEXT = 60


def process_groups() -> list[dict[str, Any]]:
    """The groups: name, rank and size, a digest of the members, collectives begun, and the call in progress of each thread."""
    c10d: Any = sys.modules.get(_C10D)
    world: Any = getattr(c10d, "_world", None)
    if world is None:
        return []
    named = list(world.pg_names.items())[:_MOST_GROUPS]
    calls = list(_calls(c10d)) if named else []
    default = world.default_pg
    return [
        {
            "name": str(name),
            "rank": int(group.rank()),
            "size": int(group.size()),
            "members": _digest(sorted(world.pg_group_ranks.get(group, ()))),
            "begun": _begun(group),
            "calls": [call for of, call in calls if of is group or (of is None and group is default)],
        }
        for group, name in named
    ]


def _begun(group: Any) -> int | None:
    """The number of collectives that have begun; None for a backend that does not count."""
    try:
        return int(group._get_sequence_number_for_group())
    except (AttributeError, RuntimeError):
        return None


def _calls(c10d: Any) -> list[tuple[Any, dict[str, Any]]]:
    """The collectives in progress, each with its group; None for the default group."""
    found: list[tuple[Any, dict[str, Any]]] = []
    for ident, innermost in sys._current_frames().items():  # pyright: ignore[reportPrivateUsage]
        frame = _collective(innermost, c10d.__file__)
        if frame is not None:
            values = frame.f_locals
            found.append((values.get("group"), {"thread": ident, "call": frame.f_code.co_name, **_described(values)}))
    return found


def _collective(frame: FrameType | None, file: str) -> FrameType | None:
    """The innermost call of a public function with a group: `broadcast` below `broadcast_object_list`."""
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return None
        code = frame.f_code
        if code.co_filename == file and not code.co_name.startswith("_") and "group" in code.co_varnames[: code.co_argcount]:
            return frame
        frame = frame.f_back
    return None


def _described(values: dict[str, Any]) -> dict[str, Any]:
    """Shape, type of the elements, operation and root of a call, as far as it has them."""
    found: dict[str, Any] = {}
    tensor = next((one for name in _TENSORS if (one := _first(values.get(name))) is not None), None)
    if tensor is not None:
        found["shape"] = [int(size) for size in tensor.shape]
        found["dtype"] = str(tensor.dtype).removeprefix("torch.")
    operation = getattr(values.get("op"), "op", values.get("op"))
    if operation is not None:
        found["operation"] = str(getattr(operation, "name", operation))[:_MOST_TEXT]
    root = next((values[name] for name in _ROOTS if isinstance(values.get(name), int)), None)
    if root is not None:
        found["root"] = root
    return found


def _first(value: Any) -> Any:
    """The tensor, or the first of a list of tensors."""
    several: Any = value if type(value) in (list, tuple) and value else (value,)
    one = several[0]
    return one if hasattr(one, "shape") and hasattr(one, "dtype") else None


def _digest(ranks: list[int]) -> str:
    return f"{crc32(repr(ranks).encode()):08x}"
