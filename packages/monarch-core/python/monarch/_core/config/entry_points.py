"""Entry points of other wheels: found by group, loaded one by one, and left out if they are broken.

This is the only reader of entry points. Its results hold until the process ends.
"""

from __future__ import annotations

from monarch._core.config.installed import CORE, Entry, Installed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


class LoadedEntry:
    """An entry point and the object that it refers to; `wheel` has name and version."""

    __slots__ = ("group", "name", "target", "value", "wheel")

    def __init__(self, group: str, name: str, wheel: str, target: str, value: Any) -> None:
        self.group = group
        self.name = name
        self.wheel = wheel
        self.target = target
        self.value = value

    def broken(self, error: BaseException) -> BrokenEntry:
        """The same entry point, after its object has raised an exception."""
        return BrokenEntry(self.group, self.name, self.wheel, self.target, error)


class BrokenEntry:
    """An entry point that is left out: its wheel, the reason, the `traceback`, and the remedy (`todo`)."""

    __slots__ = ("error", "group", "name", "target", "todo", "traceback", "wheel")

    def __init__(self, group: str, name: str, wheel: str, target: str, error: BaseException, todo: str = "") -> None:
        self.group = group
        self.name = name
        self.wheel = wheel
        self.target = target
        # Formatted now: the frames of the exception would keep the objects that they refer to.
        self.traceback = _formatted(error)
        self.error = error.with_traceback(None)
        # The hint of a wheel's own error is better than the hint of this module.
        hint = getattr(error, "hint", None)
        self.todo = todo or (hint if isinstance(hint, str) and hint else _repair(wheel.partition(" ")[0]))

    @property
    def is_extra(self) -> bool:
        """Whether the wheel itself reports a missing requirement, with a hint: an extra that is not installed, and no defect."""
        return isinstance(self.error, ImportError) and bool(getattr(self.error, "hint", None))

    def describe(self) -> str:
        """One line that names the wheel, the entry point and the error."""
        return f"{self.wheel}: entry point {self.name!r} of {self.group} ({self.target}): {type(self.error).__name__}: {self.reason()}"

    def reason(self) -> str:
        """The text of the error, without the hint that `todo` has."""
        return _described(self.error).removesuffix(f"\nhint: {self.todo}")

    def report(self) -> str:
        """The line of `describe`, and the traceback."""
        return f"{self.describe()}\n{self.traceback}" if self.traceback else self.describe()


class RefusedVersion(ImportError):
    """A wheel was built for other versions of monarch-core."""


# The entry points looked up so far, by group and name; None for a missing entry point.
_known: dict[tuple[str, str], LoadedEntry | BrokenEntry | None] = {}
# Entry points that were loaded and failed later; `broken` lists them too.
_failed: list[BrokenEntry] = []
_installed: Installed | None = None
# By wheel: the reason to refuse its entry points, and the remedy.
_refused: dict[str, tuple[str, str] | None] = {}


def entry_names(group: str) -> list[str]:
    """The entry points of a group, sorted; the folders of the module path are read once a process."""
    return sorted(_all().entries.get(group, ()))


def load_entry(group: str, name: str) -> LoadedEntry | BrokenEntry | None:
    """The entry point, loaded at most once a process; None if no wheel has it. `BrokenEntry` holds the exception of its import.

    An entry point that could not be loaded for want of descriptors, memory or the like is tried again.
    """
    key = group, name
    known = _known.get(key)
    if key not in _known or (isinstance(known, BrokenEntry) and isinstance(known.error, OSError | MemoryError)):
        entry = _all().entries.get(group, {}).get(name)
        _known[key] = None if entry is None else _load(entry)
    return _known[key]


def load_entries(group: str) -> Iterator[LoadedEntry | BrokenEntry]:
    """Each entry point of a group, by name."""
    for name in entry_names(group):
        found = load_entry(group, name)
        if found is not None:
            yield found


def groups() -> list[str]:
    """The groups in which any wheel has an entry point, sorted."""
    return sorted(_all().entries)


def entries_by_wheel() -> dict[str, list[tuple[str, str]]]:
    """Group and name of each entry point, by wheel as `name version`; all sorted."""
    found: dict[str, list[tuple[str, str]]] = {}
    for group in groups():
        for name in entry_names(group):
            found.setdefault(str(_all().entries[group][name].wheel), []).append((group, name))
    return dict(sorted(found.items()))


def installed_versions() -> dict[str, str]:
    """The versions of the wheels on the module path, by name in lower case with hyphens."""
    return _all().versions


def broken() -> list[BrokenEntry]:
    """The entry points that are left out in this process."""
    return [*(found for found in _known.values() if isinstance(found, BrokenEntry)), *_failed]


def leave_out(found: BrokenEntry) -> None:
    """Logs an entry point that is left out, with its traceback, and records it."""
    if found not in _known.values():
        _failed.append(found)
    from logging import getLogger

    getLogger("monarch.extension").warning("left out: %s", found.report())


def forget() -> None:
    """Forgets the module path, which is then read again. For tests, which install wheels while they run."""
    global _installed
    _installed = None
    _known.clear()
    _failed.clear()
    _refused.clear()


def _all() -> Installed:
    global _installed
    if _installed is None:
        _installed = Installed()
    return _installed


def _load(entry: Entry) -> LoadedEntry | BrokenEntry:
    wheel = str(entry.wheel)
    if wheel not in _refused:
        _refused[wheel] = _refusal(entry)
    refusal = _refused[wheel]
    if refusal is not None:
        return BrokenEntry(entry.group, entry.name, wheel, entry.target, RefusedVersion(refusal[0]), refusal[1])
    try:
        return LoadedEntry(entry.group, entry.name, wheel, entry.target, _resolve(entry.target))
    except Exception as e:  # another wheel may raise anything
        return BrokenEntry(entry.group, entry.name, wheel, entry.target, e)


def _resolve(target: str) -> Any:
    from importlib import import_module

    module, _, attributes = target.partition("[")[0].partition(":")
    found: Any = import_module(module.strip())
    for attribute in filter(None, attributes.strip().split(".")):
        found = getattr(found, attribute)
    return found


def _refusal(entry: Entry) -> tuple[str, str] | None:
    core = _all().core
    wanted = entry.wheel.core_range()
    if core is None or not wanted:
        return None
    from monarch._core.config.version_range import fits

    if fits(core, wanted):
        return None
    todo = _repair(entry.wheel.name)
    return f"{entry.wheel} was built for {CORE}{wanted}, and {CORE} {core} is installed: {todo}", todo


def _repair(wheel: str) -> str:
    from monarch._core.config.wheel import EXISTING, install_hint

    if wheel in EXISTING:
        return install_hint(wheel)
    core = _all().core
    return f"`pip install -U {wheel}`" + ("" if core is None else f", or another version of it that was built for {CORE} {core}")


def _described(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a class of the wheel, which may raise anything
        return "<exception str() failed>"


def _formatted(error: BaseException) -> str:
    if error.__traceback__ is None:
        return ""
    from traceback import format_exception

    return "".join(format_exception(error)).rstrip("\n")
