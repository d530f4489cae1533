"""The text of a page, or of a program's comments; what is not prose is spaces, and every line and column stays where it was."""

from __future__ import annotations

import ast
import io
import re
import tokenize

from tools.style.rust import TOKEN
from tools.style.syntax import nodes

_FENCE = re.compile(r"^(?P<indent>[ ]*)(?P<fence>`{3,}|~{3,})[^\n]*\n.*?^[ ]*(?P=fence)[^\n]*$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"(?<!`)(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`)", re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_TARGET = re.compile(r"(?<=\])\([^()\s]*\)")


def blank(text: str) -> str:
    """A match as spaces, its line ends kept."""
    return re.sub(r"[^\n]", " ", text)


def without_fences(text: str) -> str:
    """The page without its fenced code blocks and comments."""
    for pattern in (_FENCE, _COMMENT):
        text = pattern.sub(lambda found: blank(found[0]), text)
    return text


def markdown(text: str) -> str:
    """The prose of a page: no code blocks, code spans, comments or targets of links."""
    text = without_fences(text)
    # A span ends with its paragraph: one forgotten tick must not hide the rest of the page.
    text = re.sub(r"(?:.+\n?)+", lambda paragraph: _SPAN.sub(lambda found: blank(found[0]), paragraph[0]), text)
    return _TARGET.sub(lambda found: blank(found[0]), text)


def python(text: str) -> str:
    """The prose of a Python file's docstrings and comments, as `markdown` gives that of a page."""
    found = nodes(text)
    if not found:
        return ""
    lines = text.splitlines()
    kept = [""] * len(lines)
    for node in found:
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or not node.body:
            continue
        first = node.body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            for number in range(first.lineno - 1, first.end_lineno or first.lineno):
                kept[number] = lines[number]
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            kept[token.start[0] - 1] = token.string.lstrip("#! ")
    return markdown("\n".join(kept))


def rust(text: str) -> str:
    """The prose of a Rust file's comments, doc comments too, as `markdown` gives that of a page."""
    kept = [""] * (text.count("\n") + 1)
    for found in TOKEN.finditer(text):
        if found[0].startswith("//"):
            kept[text.count("\n", 0, found.start())] = found[0].lstrip("/!").removeprefix(" ")
    return markdown("\n".join(kept))
