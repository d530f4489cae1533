"""The names of tests: a sentence of at most eight words that states the checked fact in the field's terms and begins with its noun."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tools.style import rust, words
from tools.style.problem import Problem
from tools.style.syntax import nodes

MOST_WORDS = 8
# First words that hide the noun: articles, and pronouns that stand for one.
_NO_NOUNS = frozenset({"a", "an", "the", "it", "its", "what", "who", "whoever", "somebody", "nobody", "they", "those"})
_RUST_TEST = re.compile(r"#\[test\]\s*(?:#\[[^\]]*\]\s*)*(?:async\s+)?fn\s+(?P<name>\w+)")


def python_tests(path: Path, text: str) -> Iterator[Problem]:
    """The test functions of a Python test file."""
    if not path.name.startswith("test_"):
        return
    for node in nodes(text):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield from _problems(path, node.lineno, node.name.removeprefix("test_"))


def rust_tests(path: Path, text: str) -> Iterator[Problem]:
    """The test functions of a Rust file, those within a macro too."""
    code = rust.blank(text)
    for found in _RUST_TEST.finditer(code):
        yield from _problems(path, code.count("\n", 0, found.start("name")) + 1, found["name"])


def _problems(path: Path, line: int, name: str) -> Iterator[Problem]:
    parts = name.split("_")
    if len(parts) > MOST_WORDS:
        yield Problem(path, line, "test-name", f"'{name}' has {len(parts)} words; state the checked fact in at most {MOST_WORDS}")
    if parts[0] in _NO_NOUNS:
        yield Problem(path, line, "test-name", f"'{name}' begins with '{parts[0]}'; begin with the noun that the test is about")
    for word, instead in words.refused(name):
        yield Problem(path, line, "test-name", f"'{word}' in '{name}'; write: {instead}")
