"""Entry points of other wheels: found by group, loaded one by one, and left out where they are broken."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.metadata import EntryPoint
    from typing import Any


class Loaded:
    """An entry point and what it refers to."""

    __slots__ = ("group", "name", "value", "wheel")

    def __init__(self, group: str, name: str, wheel: str, value: Any) -> None:
        self.group = group
        self.name = name
        self.wheel = wheel
        self.value = value


class Broken:
    """An entry point that could not be loaded: of which wheel, and why."""

    __slots__ = ("error", "group", "name", "target", "wheel")

    def __init__(self, group: str, name: str, wheel: str, target: str, error: BaseException) -> None:
        self.group = group
        self.name = name
        self.wheel = wheel
        self.target = target
        self.error = error

    def describe(self) -> str:
        """One line that names the wheel, the entry point and the error."""
        return f"{self.wheel}: entry point {self.name!r} of {self.group} ({self.target}): {type(self.error).__name__}: {self.error}"


# What was looked at so far, by group and name; None where there is no such entry point.
_known: dict[tuple[str, str], Loaded | Broken | None] = {}
_groups: dict[str, dict[str, EntryPoint]] = {}


def names(group: str) -> list[str]:
    """The entry points of a group, sorted; read from the metadata of the wheels once a process."""
    return sorted(_entries(group))


def load(group: str, name: str) -> Loaded | Broken | None:
    """The entry point, loaded at most once a process; None if no wheel has it. What its import raises is in `Broken`."""
    key = group, name
    if key not in _known:
        entry = _entries(group).get(name)
        _known[key] = None if entry is None else _load(entry)
    return _known[key]


def broken() -> list[Broken]:
    """Entry points that were tried in this process and could not be loaded."""
    return [found for found in _known.values() if isinstance(found, Broken)]


def _entries(group: str) -> dict[str, EntryPoint]:
    if group not in _groups:
        from importlib.metadata import entry_points

        _groups[group] = {entry.name: entry for entry in sorted(entry_points(group=group), reverse=True)}
    return _groups[group]


def _load(entry: EntryPoint) -> Loaded | Broken:
    wheel = "an unknown wheel" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
    try:
        return Loaded(entry.group, entry.name, wheel, entry.load())
    except Exception as e:  # whatever another wheel raises
        return Broken(entry.group, entry.name, wheel, entry.value, e)
