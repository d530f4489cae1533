"""All settings of this process: those of core, and those that other wheels declare in the entry-point group `monarch.settings`.

An entry point refers to a sequence of `Setting`. The declarations are loaded with the first use of a key that core does not have, and
before values are sent to procs. Wheels whose declarations are broken are left out.
"""

from __future__ import annotations

from monarch._core.config.setting import SETTINGS, SPELLINGS, Setting
from monarch._core.config.wheel_declarations import Declarations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from monarch._core.config.entry_points import LoadedEntry

GROUP = "monarch.settings"

# All settings by key. The table only grows.
KNOWN: dict[str, Setting] = dict(SETTINGS)
# The wheel of each key outside core, as `name version`.
WHEELS: dict[str, str] = {}


def declare() -> None:
    """Loads the declarations of all wheels. Loaded declarations stay as they are."""
    _others.load()


def known(name: str) -> Setting:
    """The setting of that name or spelling; `ValueError` names the wheel that is missing or left out."""
    found = KNOWN.get(SPELLINGS.get(name, name))
    if found is None:
        declare()
        found = KNOWN.get(name)
    if found is None:
        raise ValueError(unknown(name))
    return found


def unknown(name: str) -> str:
    """The reason why a key is unknown."""
    from monarch._core.config.entry_points import broken
    from monarch._core.config.wheel import needs_wheel, wheel_of_setting

    wheel = wheel_of_setting(name)
    lines = [f"invalid configuration key: `{name}`"]
    left_out = [one for one in broken() if one.group == GROUP]
    if left_out:
        lines += [f"  left out: {one.describe()}\n  hint: {one.todo}" for one in left_out]
    elif wheel is not None:
        lines = [needs_wheel(f"invalid configuration key: `{name}`", wheel)]
    return "\n".join(lines)


def _take(found: LoadedEntry) -> None:
    settings = _checked(found)
    KNOWN.update(settings)
    WHEELS.update(dict.fromkeys(settings, found.wheel))


def _checked(found: LoadedEntry) -> dict[str, Setting]:
    declared: Sequence[Setting] = found.value
    settings: dict[str, Setting] = {}
    variables = {variable: one for one in KNOWN.values() for variable in one.variables}
    for one in declared:
        if not isinstance(one, Setting):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"{one!r} is not a Setting")
        if one.name in settings:
            raise ValueError(f"configuration key `{one.name}` is declared twice")
        if one.name in KNOWN:
            raise ValueError(f"configuration key `{one.name}` belongs to {WHEELS.get(one.name, 'monarch-core')}")
        for variable in one.variables:
            if variable in variables:
                raise ValueError(f"variable {variable} of `{one.name}` belongs to `{variables[variable].name}`")
            variables[variable] = one
        if one.check(one.default) != one.default:
            raise ValueError(f"the default of `{one.name}` is not in normal form: {one.check(one.default)!r} is")
        settings[one.name] = one
    return settings


_others = Declarations(GROUP, _take)
