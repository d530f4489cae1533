"""A page for each public module, from what runs: names, signatures, docstrings."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

from tools.public_names import describe_name, members, signature

_SECTION = re.compile(r"(Args|Returns|Yields|Raises|Attributes):$")
_TITLES = {"Args": "Arguments"}
_ITEM = re.compile(r"    (\*{0,2}\w+): (.*)$")


def page(module_name: str, wheel: str) -> str:
    """The page of a module, in Markdown."""
    module = importlib.import_module(module_name)
    parts = [f"# {module_name}", f"Part of the wheel `{wheel}`.", markdown(inspect.getdoc(module) or "")]
    for name in sorted(module.__all__):
        parts += _name(name, getattr(module, name))
    return "\n\n".join(filter(None, parts)) + "\n"


def _name(name: str, value: Any) -> Iterator[str]:
    lines = list(describe_name(name, value))
    is_class = inspect.isclass(value)
    yield f"## {name}"
    yield "```python\n" + "\n".join(lines) + "\n```"
    yield markdown(inspect.getdoc(value) or "") if is_class or callable(value) else ""
    if is_class and value.__name__ == name:
        for member, found in sorted(members(value).items()):
            function: Any = getattr(found, "__func__", found)
            text = inspect.getdoc(function) if callable(function) or isinstance(function, property) else None
            if text:
                yield f"### {name}.{member}"
                yield f"```python\n{member}{signature(function)}\n```" if callable(function) else ""
                yield markdown(text)


def markdown(text: str) -> str:
    """A docstring, with its sections as lists."""
    made: list[str] = []
    in_section = False
    for line in text.splitlines():
        if found := _SECTION.match(line):
            made += ["", f"**{_TITLES.get(found[1], found[1])}**", ""]
            in_section = True
        elif in_section and (found := _ITEM.match(line)):
            made.append(f"- `{found[1]}`: {found[2]}")
        elif in_section and line.startswith("        "):
            made.append("  " + line.strip())
        elif in_section and line.startswith("    "):
            made.append(line.strip())
        else:
            in_section = in_section and not line
            made.append(line)
    return "\n".join(made).strip()
