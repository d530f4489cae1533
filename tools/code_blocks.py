"""The Python code blocks of a Markdown file, as one script."""

from __future__ import annotations

import re
from collections.abc import Iterator

_FENCE = re.compile(r"^(?P<indent> {0,3})(?P<fence>`{3,})(?P<info>[^`]*)$")


def script(markdown: str) -> str:
    """All blocks that begin with ```python, in order, each on its lines in the file, so that tracebacks point there.

    Blocks marked ```python no-run, and those of other languages, become blank lines. Empty when there is nothing to run.
    """
    text = "\n".join(line for _, line in _lines(markdown)).rstrip()
    return f"{text}\n" if text else ""


def blocks(markdown: str) -> list[str]:
    """The same blocks, as separate texts."""
    found: dict[int, list[str]] = {}
    for number, line in _lines(markdown):
        if number:
            found.setdefault(number, []).append(line)
    return ["\n".join(lines) for lines in found.values()]


def _lines(markdown: str) -> Iterator[tuple[int, str]]:
    """Each line with the number of its block: 0 and an empty line outside of all blocks."""
    fence = indent = ""
    count = number = 0
    for line in markdown.splitlines():
        found = _FENCE.match(line)
        if not fence and found:
            fence, indent = found["fence"], found["indent"]
            words = found["info"].split()
            if words[:1] == ["python"] and "no-run" not in words:
                count += 1
                number = count
            yield 0, ""
        elif fence and found and found["fence"].startswith(fence) and not found["info"].strip():
            fence, number = "", 0
            yield 0, ""
        else:
            yield number, line.removeprefix(indent) if number else ""
