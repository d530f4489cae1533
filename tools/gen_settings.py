"""Writes docs/settings.md from the table of settings in monarch-core and the declarations of the other wheels.

python -m tools.gen_settings            rewrite the page
python -m tools.gen_settings --check    change nothing, exit 1 if the page is stale
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from tools.declarations import of_wheels
from tools.generate_docs import NOTE
from tools.project import CORE, ROOT

PAGE = ROOT / "docs" / "settings.md"

INTRODUCTION = """\
# Settings

Change a setting with `monarch.config.configure`, for a block of code with `configured`, or with an environment variable. This page lists
every setting with its default and its variable.

```python
from monarch.config import configure, configured, get_global_config

configure(host_loss_timeout="5s")
with configured(flight_recorder=True):
    assert get_global_config()["host_loss_timeout"] == "5s"
```

- The first of these that has a value wins: the environment, `configure`, the value that the client has sent, the default. A change
  applies to processes and meshes that are created afterwards. Every proc and every attached host receives the effective values, except
  those of keys marked *local*.
- A duration is a text with one or more numbers and units (ns, us, ms, s, m, h, day, w), such as `"1h 30m"`. It reads back in a normal
  form.
- In the environment a boolean is `1`, `0`, `true` or `false`, and `none` is `None` for keys that permit it. If a key has several
  variables, the first one with a value wins. An empty variable counts as not set.
"""

SECTIONS = (
    ("core", "Runtime", ""),
    ("telemetry", "Telemetry", "Read by monarch-telemetry; without it they have no effect."),
)

IGNORED = """\
## Accepted and ignored

These were settings of torchmonarch 0.7. They are type-checked, stored and read back, and do nothing. Setting one warns once per
process, except if it is marked *silent*.
"""


def text() -> str:
    """The page, without the note on its source."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    # The table is pure Python: the page needs no build and no installation.
    sys.path.insert(0, str(CORE / "python"))
    try:
        table = importlib.import_module("monarch._core.config.setting")
    finally:
        del sys.path[0]

    yield INTRODUCTION
    for group, title, note in SECTIONS:
        yield f"## {title}\n"
        if note:
            yield f"{note}\n"
        yield _rows(setting for setting in table.SETTINGS.values() if setting.group == group)
    for wheel, settings in of_wheels("monarch.settings"):
        yield f"## {wheel}\n"
        yield f"Declared by {wheel}; without it these keys are refused, and the error names it.\n"
        yield _rows(settings)
    yield IGNORED
    rows = [
        (
            f"`{setting.name}`",
            setting.kind,
            _value(setting.default),
            _names(setting.variables),
            f"{setting.about} (*silent*)" if setting.silent else setting.about,
        )
        for setting in table.SETTINGS.values()
        if setting.ignored
    ]
    yield _table(("Key", "Type", "Default", "Environment", "Why it has no meaning here"), rows)
    yield f"Former keys, which are refused like any unknown key: {_names(table.DROPPED)}.\n"


def _rows(settings: Iterable[Any]) -> str:
    rows: list[tuple[str, ...]] = []
    for setting in settings:
        kind = " or ".join(f"`{choice}`" for choice in setting.choices) or setting.kind
        limits = [
            word for word, holds in ((setting.unit, setting.unit), ("or `None`", setting.nullable), ("not zero", setting.nonzero)) if holds
        ]
        about = f"*Local.* {setting.about}" if setting.local else setting.about
        rows.append((f"`{setting.name}`", ", ".join((kind, *limits)), _value(setting.default), _names(setting.variables), about))
    return _table(("Key", "Type", "Default", "Environment", "Meaning"), rows)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    cells = [head, ("---",) * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)


def _value(default: object) -> str:
    return f'`"{default}"`' if isinstance(default, str) else f"`{default!r}`"


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    new = NOTE.format(module="tools.gen_settings") + text()
    if not arguments:
        PAGE.write_text(new, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != new:
        print("docs/settings.md is stale: python -m tools.gen_settings", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
