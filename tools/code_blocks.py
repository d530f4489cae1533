"""The Python code blocks of a Markdown file, as one script."""

from __future__ import annotations

import re

_FENCE = re.compile(r"^(?P<indent> {0,3})(?P<fence>`{3,})(?P<info>[^`]*)$")


def script(markdown: str) -> str:
    """All blocks that begin with ```python, in order, each on the lines that it has in the file, so that tracebacks point there.

    Blocks marked ```python no-run, and those of other languages, become blank lines. Empty when there is nothing to run.
    """
    lines: list[str] = []
    fence = indent = ""
    run = False
    for line in markdown.splitlines():
        found = _FENCE.match(line)
        if not fence and found:
            fence, indent = found["fence"], found["indent"]
            words = found["info"].split()
            run = words[:1] == ["python"] and "no-run" not in words
            lines.append("")
        elif fence and found and found["fence"].startswith(fence) and not found["info"].strip():
            fence, run = "", False
            lines.append("")
        else:
            lines.append(line.removeprefix(indent) if run else "")
    text = "\n".join(lines).rstrip()
    return f"{text}\n" if text else ""
