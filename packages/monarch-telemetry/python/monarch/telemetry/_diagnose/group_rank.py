"""A rank of a process group: how many collectives it has begun, and the one in which it waits.

The ranks of a group count alike: the collective that is number 12 for one of them is number 12 for all.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple, cast


class Call(NamedTuple):
    """A collective in progress. `size` and `dtype` are those of its tensor, `root` is of collectives that have one."""

    thread: int
    name: str
    shape: tuple[int, ...] | None = None
    dtype: str = ""
    root: int | None = None

    @property
    def size(self) -> int | None:
        return None if self.shape is None else prod(self.shape)

    @property
    def described(self) -> str:
        """`a float32 tensor of 4x1024`."""
        if self.shape is None:
            return "no tensor"
        return f"a {self.dtype} tensor of {'x'.join(map(str, self.shape)) or 'one element'}"


class Counted(NamedTuple):
    """A rank of a group in one look: the collectives that it has begun, and the one in which it waits."""

    begun: int
    call: Call | None = None


class GroupRank(NamedTuple):
    """A rank of a process group in all looks, the last one last. `group` is equal for the ranks of one group."""

    proc: str
    group: tuple[str, ...]
    rank: int
    size: int
    looks: tuple[Counted, ...]

    @property
    def now(self) -> Counted:
        return self.looks[-1]

    @property
    def waits(self) -> Call | None:
        """The call in which the rank has been in all looks."""
        same = len(self.looks) > 1 and all(look.begun == self.now.begun and look.call is not None for look in self.looks)
        return self.now.call if same else None


def counted_ranks(answer: object) -> Iterator[tuple[tuple[tuple[str, ...], int, int], Counted]]:
    """Of the answer of a process, each group with the rank of the process in it, its size, and the count."""
    groups: object = cast("dict[str, object]", answer).get("groups") if isinstance(answer, dict) else None
    for one in cast("list[Any]", groups) if isinstance(groups, list) else []:
        try:
            if one["begun"] is None:
                continue
            calls = [
                Call(
                    int(call["thread"]),
                    str(call["call"]),
                    tuple(map(int, call["shape"])) if "shape" in call else None,
                    str(call.get("dtype", "")),
                    call.get("root"),
                )
                for call in one["calls"]
            ]
            key = ((str(one["name"]), str(one["members"])), int(one["rank"]), int(one["size"]))
        except (KeyError, TypeError, ValueError):
            continue  # the process made the answer itself, and may be of another release
        yield key, Counted(int(one["begun"]), next(iter(calls), None))
