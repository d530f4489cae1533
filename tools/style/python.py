"""Checks on Python sources."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools.style.problem import Problem, is_test
from tools.style.syntax import nodes, parsed

CLOCKS = {"time", "asyncio", "trio", "anyio"}
# The pattern is also applied inside strings: a script for another interpreter. `sleep(0)` only yields and takes no time.
SLEEP_TEXT = re.compile(r"\b(?:time|asyncio|trio|anyio)\.sleep\s*\((?!\s*0\s*\))")
SLEEP_MARK = re.compile(r"# sleeps: \S")
# Calls that pass time in a loop, and the mark of a loop that must not be an `eventually`.
_PAUSES = re.compile(r"\b(?:sleep|sched_yield|sigtimedwait|select\.select)\(")
_POLL_MARK = re.compile(r"# polls: \S")
# Methods of texts and patterns whose result is a decision.
_TEXT_TESTS = {"startswith", "endswith", "search", "match", "fullmatch"}
# The hooks of PEP 562, by which a facade loads names late.
MODULE_HOOKS = {"__getattr__", "__dir__"}


def contents(path: Path, text: str) -> Iterator[Problem]:
    """`__init__.py` is a table of contents: imports and names, nothing implemented."""
    if path.name != "__init__.py":
        return
    for node in nodes(text):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name not in MODULE_HOOKS:
            yield Problem(path, node.lineno, "contents-only", f"'{node.name}' is implemented here; give it a file of its own")


def sleeps(path: Path, text: str) -> Iterator[Problem]:
    """No sleep in a test. A line that needs one gives the reason: `# sleeps: <reason>`."""
    if not is_test(path):
        return
    lines = text.splitlines()
    found = {number for number, line in enumerate(lines, 1) if SLEEP_TEXT.search(line.split("#")[0])}
    found |= {node.lineno for node in _sleep_calls(nodes(text))}
    for number in sorted(found):
        if not SLEEP_MARK.search(lines[number - 1]):
            yield Problem(path, number, "sleep", "a sleep in a test; wait for an event, or say why: '# sleeps: <reason>'")


def polls(path: Path, text: str) -> Iterator[Problem]:
    """No loop of a test that only waits, also in its scripts: `eventually` names the awaited condition. Otherwise `# polls: <reason>`."""
    if not is_test(path):
        return
    lines = text.splitlines()
    for first, found in [(1, nodes(text)), *((line, parsed(source)) for line, source in _scripts(text))]:
        for node in found:
            if isinstance(node, ast.While) and _only_waits(node):
                number = min(first + node.lineno - 1, len(lines))
                if not _POLL_MARK.search(lines[number - 1]):
                    yield Problem(path, number, "poll", "a loop that only waits; use `eventually`, or say why: '# polls: <reason>'")


def error_texts(path: Path, text: str) -> Iterator[Problem]:
    """No decision by the text of a caught error: its type, code or number decides."""
    if is_test(path):
        return
    for handler in nodes(text):
        if not isinstance(handler, ast.ExceptHandler) or handler.name is None:
            continue
        texts = {f"str({handler.name})", f"repr({handler.name})", f"{handler.name}.args[0]"}
        for node in ast.walk(handler):
            if isinstance(node, ast.Compare):
                operands = [node.left, *node.comparators]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _TEXT_TESTS:
                operands = [node.func.value, *node.args]
            else:
                continue
            if any(_without_case(ast.unparse(one)) in texts for one in operands):
                yield Problem(path, node.lineno, "error-text", "the text of an error decides; use its type, its code or its number")


def _without_case(source: str) -> str:
    return source.removesuffix(".lower()").removesuffix(".casefold()")


def _only_waits(loop: ast.While) -> bool:
    """Whether a loop only waits. An endless loop and one that passes a given time are intended."""
    condition = ast.unparse(loop.test)
    if isinstance(loop.test, ast.Constant) or "monotonic" in condition:
        return False
    return all(isinstance(one, ast.Pass | ast.Continue) or _PAUSES.search(ast.unparse(one)) for one in loop.body)


def _scripts(text: str) -> Iterator[tuple[int, str]]:
    """First line and text of each string that may be a script; in an f-string a name replaces each value."""
    for node in nodes(text):
        if not isinstance(node, ast.Constant | ast.JoinedStr):
            continue
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        found = "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in parts)
        if "while " in found:
            yield node.lineno, textwrap.dedent(found)


def _sleep_calls(found: Sequence[ast.AST]) -> Iterator[ast.Call]:
    """Calls of a clock's `sleep`, under any imported name."""
    modules = set(CLOCKS)
    functions: set[str] = set()
    for node in found:
        if isinstance(node, ast.Import):
            modules |= {alias.asname for alias in node.names if alias.name in CLOCKS and alias.asname}
        elif isinstance(node, ast.ImportFrom) and node.module in CLOCKS:
            functions |= {alias.asname or alias.name for alias in node.names if alias.name == "sleep"}
    for node in found:
        if not isinstance(node, ast.Call) or [ast.unparse(argument) for argument in node.args] == ["0"]:
            continue
        called = node.func
        if isinstance(called, ast.Name) and called.id in functions:
            yield node
        elif isinstance(called, ast.Attribute) and called.attr == "sleep":
            if isinstance(called.value, ast.Name) and called.value.id in modules:
                yield node
