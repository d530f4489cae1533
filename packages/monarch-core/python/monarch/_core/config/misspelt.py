"""Environment variables whose names are close to that of a setting, and which therefore have no effect."""

from __future__ import annotations

from monarch._core.config.known_settings import KNOWN, declare

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

PREFIX = "MONARCH_"
# Below this likeness a name is taken for a variable of another program.
_LIKENESS = 0.75
# Variables that are no settings: those that most environments have, which cost no comparison, and those with names like settings.
OTHERS = frozenset({"MONARCH_HOME", "MONARCH_JOB_SECRET_FILE", "MONARCH_CAST_FAN_OUT", "MONARCH_PRELOAD_FDS"})


def misspelt(names: Iterable[str]) -> dict[str, str]:
    """The names of variables that no setting has, and for each the closest variable of a setting, if one is close enough."""
    unknown = {name for name in names if name.startswith(PREFIX)} - OTHERS
    if unknown:
        unknown -= _variables()
    if unknown:
        declare()
        unknown -= _variables()
    if not unknown:
        return {}
    from difflib import get_close_matches

    settings = {variable.removeprefix(PREFIX): variable for variable in sorted(_variables()) if variable.startswith(PREFIX)}
    found = {name: get_close_matches(name.removeprefix(PREFIX), settings, 1, _LIKENESS) for name in sorted(unknown)}
    return {name: settings[close[0]] for name, close in found.items() if close}


def _variables() -> set[str]:
    return {variable for setting in KNOWN.values() for variable in setting.variables}
