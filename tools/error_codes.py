"""The codes of a wheel's errors, from its sources: `_default_code` of classes, and `code=` of calls that name a text."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path


def carried(folder: Path) -> dict[str, str]:
    """Each code, with the place of its first use. `code=NAME` counts with the text that any module there gives to NAME."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.py"))}
    texts = {name: text for tree in trees.values() for name, text in _constants(tree)}
    found: dict[str, str] = {}
    for path, tree in trees.items():
        for node in ast.walk(tree):
            for code in _codes(node, texts):
                found.setdefault(code, f"{path.relative_to(folder)}:{getattr(node, 'lineno', 0)}")
    return found


def _constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    yield target.id, node.value.value


def _codes(node: ast.AST, texts: dict[str, str]) -> Iterator[str]:
    if isinstance(node, ast.Assign) and any(isinstance(target, ast.Name) and target.id == "_default_code" for target in node.targets):
        value: ast.expr | None = node.value
    elif isinstance(node, ast.keyword) and node.arg == "code":
        value = node.value
    else:
        return
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        yield value.value
    elif isinstance(value, ast.Name) and value.id.isupper() and value.id in texts:
        yield texts[value.id]
