"""Set-up of new procs by other wheels: hooks in the entry-point group `monarch.process`.

A hook may contribute before the start, in the process that spawns; act after it, in the new proc, before its first actor; and act before
the end of the proc, if that is orderly. The spawner's hooks count: their names travel with the set-up of the procs, and each proc loads
those. A hook that fails, or exceeds its limit, is logged and left out of that process from then on.
"""

from __future__ import annotations

from monarch._core.config.entry_points import BrokenEntry, LoadedEntry, broken, entry_names, leave_out, load_entry
from monarch._core.process.environment import not_for_kernel
from monarch._core.process.time_limit import TimeLimit, within

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any, TypeAlias

    # The set-up in its wire form: name and size of the mesh, hooks with their wheels, values, changes of the environment.
    Wire: TypeAlias = tuple[str, int, list[tuple[str, str]], dict[str, bytes], dict[str, str | None]]

GROUP = "monarch.process"
# The default time limit of a hook, in seconds. Procs of a mesh start side by side, so a hook at this limit delays a spawn by no more.
LIMIT = 10.0
# The parts of a hook, each of which is optional.
CONTRIBUTE, START, STOP = "contribute", "start", "stop"


class ProcSetup:
    """The set-up of the procs of a new mesh, and the environment that they start in.

    `name` and `size` are those of the mesh. The spawner's hooks set values and variables; the hooks in the procs read them.
    """

    __slots__ = ("__core__", "_environment", "_values", "name", "size")

    def __init__(self, name: str, size: int, values: Mapping[str, bytes], environment: Mapping[str, str | None]) -> None:
        self.name = name
        self.size = size
        self._values = dict(values)
        self._environment = dict(environment)
        self.__core__ = self._values, self._environment

    def set(self, name: str, value: bytes) -> None:
        """Gives each proc a value; `ValueError` for a name that is set already, so names begin with that of the wheel."""
        if not isinstance(name, str) or not isinstance(value, bytes):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                f"ProcSetup.set({name!r}, ...): expected a text and bytes, not {type(name).__name__} and {type(value).__name__}"
            )
        if name in self._values:
            raise ValueError(f"ProcSetup.set({name!r}, ...): the value is set already")
        self._values[name] = value

    def get(self, name: str) -> bytes | None:
        """A value that a hook has set; None if none has."""
        return self._values.get(name)

    def set_variable(self, name: str, value: str | None) -> None:
        """Sets a variable of the environment in which each proc starts; None removes the variable.

        `ValueError` if another hook has given the variable another value, and for an impossible name or value.
        """
        if not isinstance(name, str) or not (value is None or isinstance(value, str)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"ProcSetup.set_variable({name!r}, {value!r}): expected texts")
        wrong = (
            "its name is empty" if not name else "its name has a =" if "=" in name else not_for_kernel(name) or not_for_kernel(value or "")
        )
        if wrong:
            raise ValueError(f"ProcSetup.set_variable({name!r}, {value!r}): that cannot be a variable of the environment: {wrong}")
        if self._environment.get(name, value) != value:
            raise ValueError(f"ProcSetup.set_variable({name!r}, {value!r}): it is {self._environment[name]!r} already")
        self._environment[name] = value

    @property
    def environment(self) -> dict[str, str | None]:
        """A copy of the variables that are set so far."""
        return dict(self._environment)


def contribute(name: str, size: int) -> Wire | None:
    """Runs the hooks of this process, by name, for a mesh that is about to be spawned; None if no hook works."""
    setup = ProcSetup(name, size, {}, {})
    hooks: list[tuple[str, str]] = []
    for found in _hooks(entry_names(GROUP)):
        # A hook that fails half-way has contributed nothing.
        draft = ProcSetup(name, size, *setup.__core__)
        if _call(found, CONTRIBUTE, draft):
            setup = ProcSetup(name, size, *draft.__core__)
            hooks.append((found.name, found.wheel))
    return (name, size, hooks, *setup.__core__) if hooks else None


class ProcHooks:
    """The hooks of a proc, which its spawner has named."""

    def __init__(self, wire: Wire) -> None:
        name, size, self._named, values, environment = wire
        self.setup = ProcSetup(name, size, values, environment)

    def start(self) -> None:
        """Runs the hooks before the first actor, and before `bootstrap`, in the order of their names."""
        for name, wheel in self._named:
            if load_entry(GROUP, name) is None:
                why = ModuleNotFoundError(f"the spawner of this proc has {wheel}, which is not installed here")
                leave_out(BrokenEntry(GROUP, name, wheel, "?", why, f"install {wheel} in the environment that the procs run in"))
        for found in _hooks([name for name, _ in self._named]):
            _call(found, START, self.setup)

    def stop(self, extend: Callable[[float], None]) -> None:
        """Runs the hooks before the end of the proc, in the reverse order. `extend` makes the end wait that many seconds more."""
        for found in _hooks([name for name, _ in reversed(self._named)]):
            if hasattr(found.value, STOP):
                extend(_limit(found) + 1.0)
                _call(found, STOP, self.setup)


def _hooks(names: list[str]) -> Iterator[LoadedEntry]:
    """The hooks that are not known to be broken."""
    for name in names:
        found = load_entry(GROUP, name)
        left_out = any((one.group, one.name) == (GROUP, name) for one in broken())
        if isinstance(found, BrokenEntry):
            if found not in _reported:
                _reported.append(found)
                leave_out(found)
        elif found is not None and not left_out:
            yield found


# The hooks that cannot be loaded and were logged.
_reported: list[BrokenEntry] = []


def _limit(found: LoadedEntry) -> float:
    return float(getattr(found.value, "limit", LIMIT))


def _call(found: LoadedEntry, part: str, setup: ProcSetup) -> bool:
    """Calls this part of a hook, if it has it; false if the hook is left out from now on."""
    hook: Any = found.value
    try:
        if not any(callable(getattr(hook, one, None)) for one in (CONTRIBUTE, START, STOP)):
            raise TypeError(f"{hook!r} has none of the functions {CONTRIBUTE}, {START} and {STOP}")
        function = getattr(hook, part, None)
        if function is not None:
            within(_limit(found), lambda: function(setup))
    except KeyboardInterrupt:
        raise
    except BaseException as e:  # another wheel may raise anything
        failed = found.broken(type(e)(f"{part}: {e}") if isinstance(e, TimeLimit) else e)
        failed.traceback = e.stack if isinstance(e, TimeLimit) else failed.traceback
        leave_out(failed)
        return False
    return True
