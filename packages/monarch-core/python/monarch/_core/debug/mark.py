"""Marks in the text that the debug server sends to `monarch debug`. A plain line client such as `nc` neither requests nor sees them.

A mark is a character that text never contains, a kind, a text, and another such character. Text alone does not distinguish a prompt from
an incomplete line, and a line editor needs the difference.
"""

from __future__ import annotations

OPEN, CLOSE = "\x01", "\x02"

# The first line of a client that requests marks.
HELLO = "\x01monarch debug\n"
# A line that stands for Ctrl-C.
INTERRUPT = "\x03\n"

# Kinds of marks: marks begin, the server waits for a line, Ctrl-C has arrived, the orderly end.
BEGIN, PROMPT, INTERRUPTED, END = "B", "P", "I", "E"


def mark(kind: str, text: str = "") -> str:
    return f"{OPEN}{kind}{plain(text)}{CLOSE}"


def plain(text: str) -> str:
    """Text without the delimiters of marks."""
    return text.replace(OPEN, "^A").replace(CLOSE, "^B")


class MarkReader:
    """Takes received text and yields pieces: `("", text)`, or the kind and text of a mark."""

    def __init__(self) -> None:
        self._rest = ""

    def feed(self, text: str) -> list[tuple[str, str]]:
        self._rest += text
        pieces: list[tuple[str, str]] = []
        while self._rest:
            before, opened, after = self._rest.partition(OPEN)
            if before:
                pieces.append(("", before))
            body, closed, rest = after.partition(CLOSE)
            if not closed:
                self._rest = opened + after
                break
            pieces.append((body[:1], body[1:]))
            self._rest = rest
        return pieces
