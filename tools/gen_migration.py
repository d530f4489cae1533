"""The tables of docs/migration.md: the import paths of torchmonarch 0.7 with their homes, from the tables of monarch-compat."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

from tools.project import COMPAT


def _table(name: str) -> ModuleType:
    """A table of monarch-compat, without the wheel's `monarch/__init__.py`: this process has the portions of the other wheels."""
    folder = str(COMPAT / "python" / "monarch" / "_old_modules")
    sys.path.insert(0, folder)
    try:
        return import_module(name)
    finally:
        sys.path.remove(folder)


def homes() -> str:
    """A row for each old module and place: the names that are the same, and those that have another name here."""
    homes = _table("homes")
    lines = ["| old module | names | home |", "|---|---|---|"]
    for module in homes.MODULES:
        places: dict[str, list[str]] = {}
        for old, (place, new) in homes.rows(module).items():
            places.setdefault(place, []).append(_name(old, new, place))
        lines += [
            f"| `{module}` | {', '.join(sorted(names))} | `{place}` |" for place, names in sorted(places.items()) if "._old_" not in place
        ]
    lines += [f"| `{module}` | `python -m {module}` | `monarch.extension.run_proc` |" for module in homes.SOURCES]
    return "\n".join(lines) + "\n"


def _name(old: str, new: str, place: str) -> str:
    if old == ".":
        return "all"
    if not new:
        return f"`{old}`, the module"
    return f"`{old}`" if new == old else f"`{old}` is `{new}`"


def gone() -> str:
    """A row for each old module, or name of a module, without a home."""
    gone = _table("gone")
    lines = ["| old path | what to write instead |", "|---|---|"]
    lines += [f"| `{module}`, and modules below it | {advice} |" for module, advice in sorted(gone.MODULES.items())]
    for module, names in sorted(gone.NAMES.items()):
        advices: dict[str, list[str]] = {}
        for name, advice in names.items():
            advices.setdefault(advice, []).append(name)
        for advice, listed in advices.items():
            lines.append(f"| `{module}`: {', '.join(f'`{name}`' for name in sorted(listed))} | {advice} |")
    return "\n".join(lines) + "\n"
