"""The syntax of Python sources. The checks of a file share one parse."""

from __future__ import annotations

import ast
from functools import lru_cache


def parsed(text: str) -> tuple[ast.AST, ...]:
    """All nodes of a source, breadth first; none where the text is no Python, which ruff reports better."""
    try:
        return tuple(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError):
        return ()


# The checks of one file follow each other.
nodes = lru_cache(maxsize=1)(parsed)
