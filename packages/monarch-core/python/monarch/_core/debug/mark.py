"""Marks in what the debug server sends to `monarch debug`, which a plain line client such as `nc` neither asks for nor sees.

A mark is a character that text never contains, a kind, a text, and another such character. Text alone does not tell a prompt from a line
that is still being written, and an editor of lines must know.
"""

from __future__ import annotations

OPEN, CLOSE = "\x01", "\x02"

# The first line of a client that wants marks.
HELLO = "\x01monarch debug\n"
# A line that stands for Ctrl-C.
INTERRUPT = "\x03\n"

# Kinds: marks begin here, the server waits for a line, Ctrl-C has arrived, the orderly end.
BEGIN, PROMPT, INTERRUPTED, END = "B", "P", "I", "E"


def mark(kind: str, text: str = "") -> str:
    return f"{OPEN}{kind}{plain(text)}{CLOSE}"


def plain(text: str) -> str:
    """Text without the characters that marks are made of."""
    return text.replace(OPEN, "^A").replace(CLOSE, "^B")


class MarkReader:
    """Takes text as it comes and gives it in pieces: `("", text)`, or the kind and text of a mark."""

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
