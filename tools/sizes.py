"""The sizes of the sources: lines of code per Python subpackage and per Rust crate, as a table for CONTRIBUTING.md.

A line of code has a token that is neither a comment nor part of a docstring. Tests are left out, also those within Rust files.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from tools.project import PACKAGES, ROOT, RUST, files
from tools.style import rust

WHEELS = sorted(folder for folder in PACKAGES.iterdir() if (folder / "pyproject.toml").is_file())
# A row of a checked table is stale when it differs by more than a tenth, and by more than this many lines.
_SLACK = 50
_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.ENCODING}


class Row(NamedTuple):
    """A subpackage or a crate."""

    name: str
    language: str
    files: int
    lines: int


def python_lines(text: str) -> int:
    """The lines of code of a Python file."""
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node) is not None:
            first = node.body[0]
            code.difference_update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return len(code)


def rust_lines(text: str) -> int:
    """The lines of code of a Rust file, without `#[cfg(test)]` items."""
    return sum(1 for line in rust.without_tests(rust.masked(text)).splitlines() if line.strip())


def parts() -> set[str]:
    """The names of all subpackages and crates that have rows."""
    return {part[1] for path in files() if (part := part_of(path)) is not None}


def rows() -> list[Row]:
    """Python per subpackage of each wheel, then Rust per crate, in the order of their names."""
    counted: dict[tuple[str, str], Counter[str]] = {}
    for path in files():
        key = part_of(path)
        if key is not None:
            text = (ROOT / path).read_text(encoding="utf-8")
            lines = rust_lines(text) if key[0] == "Rust" else python_lines(text)
            counted.setdefault(key, Counter()).update(files=1, lines=lines)
    return [Row(name, language, found["files"], found["lines"]) for (language, name), found in sorted(counted.items())]


def part_of(path: Path) -> tuple[str, str] | None:
    """Language and name of the subpackage or crate of a file; None for a file that is no source of a wheel."""
    if path.suffix == ".rs" and path.is_relative_to(RUST.relative_to(ROOT)):
        crate, *within = path.relative_to(RUST.relative_to(ROOT)).parts
        return ("Rust", crate) if within[:1] == ["src"] else None
    if path.suffix not in (".py", ".pyi"):
        return None
    for wheel in WHEELS:
        root = wheel.relative_to(ROOT) / "python"
        if path.is_relative_to(root):
            return "Python", ".".join(path.relative_to(root).parts[:-1][:3])
    return None


def table() -> str:
    """The table as Markdown."""
    found = rows()
    lines = ["| part | language | files | lines of code |", "|---|---|---|---|"]
    lines += [f"| `{row.name}` | {row.language} | {row.files:,} | {row.lines:,} |" for row in found]
    for language in ("Python", "Rust"):
        mine = [row for row in found if row.language == language]
        lines.append(f"| all | {language} | {sum(row.files for row in mine):,} | {sum(row.lines for row in mine):,} |")
    return "\n".join(lines) + "\n"


def is_current(old: str, new: str) -> bool:
    """Whether a table still describes the sources: the same rows, each with a similar size. So not every change has to rewrite it."""
    before, after = _read(old), _read(new)
    return before.keys() == after.keys() and all(abs(before[name] - lines) <= max(_SLACK, lines / 10) for name, lines in after.items())


def _read(text: str) -> dict[str, int]:
    """The lines of code of each row, by its first two cells."""
    cells = ([cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()[2:])
    return {" ".join(row[:2]): int(row[3].replace(",", "")) for row in cells if len(row) == 4 and row[3].replace(",", "").isdecimal()}


if __name__ == "__main__":
    print(table(), end="")
