"""Records `monarch demo` in a terminal as an animated picture for the pages.

    python -m tools.recording [FILE]      docs/images/demo.svg by default

The output and its times are those of a real run on this machine; only the name of the machine is replaced. Each line of the picture appears
when the run has printed it, the window scrolls like a terminal, and the picture starts again after its end. Where the viewer asks for
less motion, the last window is shown.
"""

from __future__ import annotations

import os
import pty
import re
import socket
import sys
import time
from html import escape
from pathlib import Path
from typing import NamedTuple

from tools.project import ROOT

COLUMNS, ROWS = 104, 26
# Sizes in pixels: a character, a line, the border.
_WIDE, _HIGH, _BORDER = 7.2, 17, 14
# Seconds for which the last window stays.
_HELD = 4.0
# Seconds after each line of the demo: time to read its output.
_PAUSE = "2.8"
_NAME = "laptop"
_STYLES = {"1": "bold", "2": "dim", "31": "red", "32": "green"}
_ESCAPE = re.compile(r"\x1b\[([0-9;]*)m")
_LOOK = (
    ".bold{font-weight:bold}.dim{fill:#8b949e}.red{fill:#ff7b72}.green{fill:#7ee787}"
    "text{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#e6edf3;white-space:pre}"
    "@media(prefers-reduced-motion:reduce){*{animation:none!important}.window{transform:translateY(var(--last))}}"
)


class Line(NamedTuple):
    """A line of the terminal: the seconds from the start after which it was there, and its parts with their styles."""

    seconds: float
    parts: tuple[tuple[str, str], ...]


def main(arguments: list[str]) -> int:
    path = Path(arguments[0]) if arguments else ROOT / "docs" / "images" / "demo.svg"
    output, code = record([sys.executable, "-m", "monarch.extension.cli", "demo", "--pause", _PAUSE])
    if code:
        print(f"recording: the demo ended with exit code {code}", file=sys.stderr)
        return 1
    path.write_text(picture(lines(output)), encoding="utf-8")
    return 0


def record(argv: list[str]) -> tuple[list[tuple[float, str]], int]:
    """Runs a command in a terminal; returns its output in pieces with their seconds, and its exit code."""
    pid, terminal = pty.fork()
    if pid == 0:
        try:
            os.execvpe(argv[0], argv, {**os.environ, "TERM": "xterm", "COLUMNS": str(COLUMNS)})
        finally:
            os._exit(127)
    start, found = time.monotonic(), list[tuple[float, str]]()
    with open(terminal, "rb", buffering=0) as stream:
        while True:
            try:
                piece = stream.read(1 << 16)
            except OSError:  # the other end of a terminal is closed
                break
            if not piece:
                break
            found.append((time.monotonic() - start, piece.decode(errors="replace")))
    _, status = os.waitpid(pid, 0)
    return found, os.waitstatus_to_exitcode(status)


def lines(output: list[tuple[float, str]]) -> list[Line]:
    """The lines of an output, folded at the width of the terminal."""
    found: list[Line] = []
    left = ""
    for seconds, piece in output:
        *whole, left = (left + piece.replace("\r", "").replace(socket.gethostname(), _NAME)).split("\n")
        for text in whole:
            found += (Line(seconds, parts) for parts in _folded(text))
    return found


def _folded(text: str) -> list[tuple[tuple[str, str], ...]]:
    rows: list[list[tuple[str, str]]] = [[]]
    used, style = 0, ""
    for n, word in enumerate(_ESCAPE.split(text)):
        if n % 2:
            style = _STYLES.get(word, "")
            continue
        while word:
            if used == COLUMNS:
                rows.append([])
                used = 0
            rows[-1].append((word[: COLUMNS - used], style))
            word, used = word[COLUMNS - used :], used + len(rows[-1][-1][0])
    return [tuple(row) for row in rows]


def picture(shown: list[Line]) -> str:
    """The animated picture, as SVG."""
    total = shown[-1].seconds + _HELD
    width, height = round(COLUMNS * _WIDE) + 2 * _BORDER, ROWS * _HIGH + 2 * _BORDER
    last = -_HIGH * max(0, len(shown) - ROWS)
    scrolled = [
        f"{100 * line.seconds / total:.3f}%{{transform:translateY({-_HIGH * (n + 1 - ROWS)}px)}}"
        for n, line in enumerate(shown)
        if n >= ROWS
    ]
    frames = ["@keyframes scroll{0%{transform:none}", *scrolled, f"100%{{transform:translateY({last}px)}}}}"]
    rows: list[str] = []
    for n, line in enumerate(shown):
        at = 100 * line.seconds / total
        frames.append(f"@keyframes l{n}{{0%{{opacity:0}}{at:.3f}%{{opacity:1}}100%{{opacity:1}}}}")
        spans = "".join(f'<tspan class="{style}">{escape(text)}</tspan>' if style else escape(text) for text, style in line.parts)
        rows.append(
            f'<text x="{_BORDER}" y="{_BORDER + (n + 1) * _HIGH - 4}" style="animation:l{n} {total:.2f}s step-end infinite">{spans}</text>'
        )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
            f"<style>{_LOOK}{''.join(frames)}</style>",
            f'<clipPath id="screen"><rect x="0" y="{_BORDER - 4}" width="{width}" height="{ROWS * _HIGH + 8}"/></clipPath>',
            f'<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>',
            f'<g clip-path="url(#screen)"><g class="window" style="--last:{last}px;animation:scroll {total:.2f}s step-end infinite">',
            *rows,
            "</g></g></svg>",
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
