"""Identities in messages between processes: numbers of 64 bits, each kind with a type of its own."""

from __future__ import annotations

from monarch._core.process.identity import from_base58, to_base58

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self


class _Id(int):
    """A number whose text is in base 58, as in the names of meshes and processes."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"<{to_base58(self)}>"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    @classmethod
    def from_string(cls, text: str) -> Self:
        """The inverse of `str`; `ValueError` for another text."""
        if not (text.startswith("<") and text.endswith(">")):
            raise ValueError(f"{text!r} is not the identity of a process: expected `<base58>`")
        return cls(from_base58(text[1:-1]))


class ProcId(_Id):
    """The identity of a process of a job: the client, a proc, or an agent."""

    __slots__ = ()


class HostId(_Id):
    """The identity of a host in its job: that of its agent."""

    __slots__ = ()


class JobId(_Id):
    """The identity of a job: that of its client."""

    __slots__ = ()


class Rank(int):
    """The position of a proc in the mesh it was spawned in."""

    __slots__ = ()
