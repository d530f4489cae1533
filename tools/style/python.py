"""Checks on Python sources."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tools.style.problem import Problem, is_test

CLOCKS = {"time", "asyncio", "trio", "anyio"}
# Also inside strings: a script that a test hands to another interpreter. `sleep(0)` gives others a turn and takes no time.
SLEEP_TEXT = re.compile(r"\b(?:time|asyncio|trio|anyio)\.sleep\s*\((?!\s*0\s*\))")
SLEEP_MARK = re.compile(r"# sleeps: \S")
# PEP 562: how a facade loads names late.
MODULE_HOOKS = {"__getattr__", "__dir__"}


def contents(path: Path, text: str) -> Iterator[Problem]:
    """`__init__.py` is a table of contents: imports and names, nothing implemented."""
    if path.name != "__init__.py":
        return
    for node in ast.walk(_parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name not in MODULE_HOOKS:
            yield Problem(path, node.lineno, "contents-only", f"'{node.name}' is implemented here; give it a file of its own")


def sleeps(path: Path, text: str) -> Iterator[Problem]:
    """No sleep in a test. A line that must have one says why: `# sleeps: <reason>`."""
    if not is_test(path):
        return
    lines = text.splitlines()
    found = {number for number, line in enumerate(lines, 1) if SLEEP_TEXT.search(line.split("#")[0])}
    found |= {node.lineno for node in _sleep_calls(_parse(text))}
    for number in sorted(found):
        if not SLEEP_MARK.search(lines[number - 1]):
            yield Problem(path, number, "sleep", "a sleep in a test; wait for an event, or say why: '# sleeps: <reason>'")


def _parse(text: str) -> ast.AST:
    try:
        return ast.parse(text)
    except SyntaxError:  # ruff reports it better
        return ast.Module(body=[], type_ignores=[])


def _sleep_calls(tree: ast.AST) -> Iterator[ast.Call]:
    """Calls of a clock's `sleep`, under whatever name it was imported."""
    modules = set(CLOCKS)
    functions: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.asname for alias in node.names if alias.name in CLOCKS and alias.asname}
        elif isinstance(node, ast.ImportFrom) and node.module in CLOCKS:
            functions |= {alias.asname or alias.name for alias in node.names if alias.name == "sleep"}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or [ast.unparse(argument) for argument in node.args] == ["0"]:
            continue
        called = node.func
        if isinstance(called, ast.Name) and called.id in functions:
            yield node
        elif isinstance(called, ast.Attribute) and called.attr == "sleep":
            if isinstance(called.value, ast.Name) and called.value.id in modules:
                yield node
