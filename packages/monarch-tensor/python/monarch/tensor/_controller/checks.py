"""Calls that cannot be sent: what is wrong with which operand, as text. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

LOCAL_TENSOR = "LOCAL_TENSOR"
WRONG_MESH = "WRONG_MESH"
WRONG_STREAM = "WRONG_STREAM"
DROPPED = "DROPPED"
BORROWED = "BORROWED"
MUTATING_BORROW = "MUTATING_BORROW"
REQUIRES_GRAD = "REQUIRES_GRAD"

REMEDIES = {
    LOCAL_TENSOR: "this tensor is on the controller only. Make it inside of `activate()`, or pass its numbers as Python values.",
    WRONG_MESH: "this tensor is on {of}, and the operation is on {here}. Move it with `to_mesh`, or activate its mesh.",
    WRONG_STREAM: "this tensor is of stream {of}, and the operation is of stream {here}. Use `Stream.borrow`, or activate its stream.",
    DROPPED: "the memory of this tensor is free: it was dropped at {of}. Drop it after its last use.",
    BORROWED: "another stream has borrowed this tensor to change it. End that borrow (`Borrow.drop`) before this use.",
    MUTATING_BORROW: "this tensor is borrowed for reading, and the operation writes to it. Borrow with `mutable=True`, or end the borrow.",
    REQUIRES_GRAD: "autograd does not reach through this operation. Use `torch.no_grad()`, `detach()` or `grad_function`.",
}


def refusal(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], problem: Callable[[Any], tuple[str, dict[str, str]] | None]
) -> TypeError:
    """The error for a call. `problem` gives for an operand its marker and the words of its remedy, or None."""
    found: dict[str, dict[str, str]] = {}
    operands = [_shown(a, problem, found) for a in args] + [f"{k}={_shown(v, problem, found)}" for k, v in kwargs.items()]
    lines = [f"{name}({', '.join(operands)})"]
    lines += [f"{marker}: {REMEDIES[marker].format(**words)}" for marker, words in found.items()]
    return TypeError("\n".join(lines))


# This is no function inside of `refusal`: a recursive one is a cycle of references, and would keep the operands until it is collected.
def _shown(value: Any, problem: Callable[[Any], tuple[str, dict[str, str]] | None], found: dict[str, dict[str, str]]) -> str:
    if isinstance(value, list | tuple):
        values: list[Any] = [*value]
        inner = ", ".join(_shown(v, problem, found) for v in values)
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(values) == 1 else ''})"
    if isinstance(value, dict):
        entries = cast("dict[Any, Any]", value)
        return "{" + ", ".join(f"{k!r}: {_shown(v, problem, found)}" for k, v in entries.items()) + "}"
    wrong = problem(value)
    if wrong is not None:
        marker, words = wrong
        found.setdefault(marker, words)
        return marker
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(map(str, value.shape))}]"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
