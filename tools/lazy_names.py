"""The table of a facade whose names are loaded on first use: the names of each module.

Type checkers read the imports of the facade, which are never executed. The table is made from them, so that a name is stated once.
"""

from __future__ import annotations

import ast
from pathlib import Path

from tools.project import ROOT

_COLUMNS = 140


def table(path: str, package: str) -> str:
    """The lines of `_HOMES` for the facade at `path`, whose modules are named from `package` on."""
    return homes((ROOT / path).read_text(encoding="utf-8"), package)


def homes(text: str, package: str) -> str:
    """The modules and names in the text of a facade. An import from another package is a submodule, and is in no table."""
    found: dict[str, list[str]] = {}
    for block in ast.parse(text).body:
        if not (isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"):
            continue
        for node in block.body:
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            if isinstance(node, ast.ImportFrom) and module.startswith(f"{package}."):
                found.setdefault(module.removeprefix(f"{package}."), []).extend(alias.name for alias in node.names)
    return "".join(["_HOMES = {\n", *(_row(module, names) for module, names in sorted(found.items())), "}\n"])


def _row(module: str, names: list[str]) -> str:
    """A row in the format of `ruff format`."""
    quoted = [f'"{name}"' for name in sorted(names)]
    line = f'    "{module}": ({", ".join(quoted)}{"," * (len(quoted) == 1)}),\n'
    if len(line) <= _COLUMNS + 1:
        return line
    return "".join([f'    "{module}": (\n', *(f"        {name},\n" for name in quoted), "    ),\n"])


def facade(wheel: Path, module: str) -> str:
    """The path of the facade `module` of a wheel in the checkout."""
    return str(wheel.relative_to(ROOT) / "python" / module.replace(".", "/") / "__init__.py")
