"""Identities that users can see: uids, procs, actors.

Inside the runtime a uid is a random 64-bit number; here it also has a label and a text form, `label<base58>`.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    class IdentifiedProcess(Protocol):
        """A process, as its address has it."""

        uid: int
        agent_uid: int
        is_client: bool


_DIGITS = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_LABEL = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_-")
_LABEL_LENGTH = 63


def new_uid() -> int:
    """A random number that no other object has; never 0."""
    return int.from_bytes(os.urandom(8), "little") | 1


def to_label(name: str) -> str:
    """The name as part of an identity: lower case, only `[a-z0-9_-]`, at most 63 characters, `nil` if nothing is left."""
    return "".join(c for c in name.lower() if c in _LABEL)[:_LABEL_LENGTH] or "nil"


def checked_name(name: str, what: str = "name") -> str:
    """The name itself; `ValueError` for a name that cannot be sent, since names are UTF-8 in messages, reports and logs."""
    try:
        name.encode()
    except UnicodeEncodeError as e:
        raise ValueError(f"{what} {name!r} is not valid Unicode: a lone surrogate at position {e.start}") from None
    return name


def to_base58(value: int) -> str:
    text = ""
    while value:
        value, digit = divmod(value, 58)
        text = _DIGITS[digit] + text
    return text or _DIGITS[0]


def from_base58(text: str) -> int:
    value = 0
    for c in text:
        digit = _DIGITS.find(c)
        if digit < 0:
            raise ValueError(f"invalid uid: {text!r}")
        value = value * 58 + digit
    return value


class _Value:
    """A value that is equal by content, hashable and picklable."""

    __slots__ = ()

    def _key(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


class Uid(_Value):
    """A unique identity: an instance (random number, optional label) or a singleton (a bare word)."""

    __slots__ = ("_label", "_value")

    def __init__(self, label: str | None, value: int | None) -> None:
        self._label = label
        self._value = value

    @staticmethod
    def anonymous() -> Uid:
        return Uid(None, new_uid())

    @staticmethod
    def instance(label: str | None = None) -> Uid:
        return Uid(None if label is None else to_label(label), new_uid())

    @staticmethod
    def instance_from_value(value: int, label: str | None = None) -> Uid:
        return Uid(None if label is None else to_label(label), value)

    @staticmethod
    def from_string(text: str) -> Uid:
        """Reads `label<base58>`, `<base58>` or a bare word; else `ValueError`."""
        if text.endswith(">") and "<" in text:
            label, _, digits = text[:-1].partition("<")
            return Uid(label or None, from_base58(digits))
        if not text or not set(text) <= _LABEL:
            raise ValueError(f"invalid uid: {text!r}")
        return Uid(text, None)

    @property
    def label(self) -> str | None:
        return self._label

    @property
    def is_instance(self) -> bool:
        return self._value is not None

    @property
    def is_singleton(self) -> bool:
        return self._value is None

    @property
    def instance_value(self) -> int | None:
        return self._value

    def __str__(self) -> str:
        if self._value is None:
            return self._label or "nil"
        return f"{self._label or ''}<{to_base58(self._value)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return (Uid, (self._label, self._value))


class ProcId(_Value):
    """The identity of a process of the job."""

    __slots__ = ("_uid",)

    def __init__(self, uid: Uid) -> None:
        self._uid = uid

    @staticmethod
    def from_string(text: str) -> ProcId:
        return ProcId(Uid.from_string(text))

    @property
    def uid(self) -> Uid:
        return self._uid

    @property
    def label(self) -> str | None:
        return self._uid.label

    def __str__(self) -> str:
        return str(self._uid)

    def __reduce__(self) -> tuple[Any, ...]:
        return (ProcId, (self._uid,))


class ActorAddr(_Value):
    """The address of an actor: its name, its process, and the address of the agent; the text form is opaque."""

    __slots__ = ("_actor", "_addr", "_proc")

    def __init__(self, *, addr: str, proc_name: str, actor_name: str) -> None:
        self._addr = addr
        self._proc = Uid.from_string(proc_name)
        self._actor = Uid.from_string(actor_name)

    @staticmethod
    def from_string(text: str) -> ActorAddr:
        """The inverse of `str`; `ValueError` for another text."""
        path, at, addr = text.partition("@")
        actor, dot, proc = path.partition(".")
        if not at or not dot:
            raise ValueError(f"invalid actor address: {text!r}")
        return ActorAddr(addr=addr, proc_name=proc, actor_name=actor)

    @property
    def addr(self) -> str:
        return self._addr

    @property
    def proc_name(self) -> str:
        return str(self._proc)

    @property
    def proc_id(self) -> ProcId:
        return ProcId(self._proc)

    @property
    def proc_label(self) -> str | None:
        return self._proc.label

    @property
    def actor_name(self) -> str:
        return self._actor.label or str(self._actor)

    @property
    def label(self) -> str | None:
        return self._actor.label

    @property
    def uid(self) -> Uid:
        return self._actor

    @property
    def pid(self) -> str:
        return str(self._actor)

    @property
    def is_root(self) -> bool:
        return self._actor.label == "client"

    def __str__(self) -> str:
        return f"{self._actor}.{self._proc}@{self._addr}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (ActorAddr.from_string, (str(self),))


def addr_of(process: IdentifiedProcess, label: str, uid: int) -> ActorAddr:
    """The address of the actor of a process; `uid` is 0 for the process itself."""
    proc = f"{'client' if process.is_client else 'proc'}<{to_base58(process.uid)}>"
    name = f"{label}<{to_base58(uid)}>" if uid else label
    return ActorAddr(addr=f"ipc://@monarch-{to_base58(process.agent_uid)}", proc_name=proc, actor_name=name)
