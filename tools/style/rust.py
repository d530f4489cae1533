"""Checks on Rust sources, on their text with comments and strings blanked out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tools.style.problem import Problem, is_test

# The alternatives must be tried in this order: a quote inside a comment opens nothing.
TOKEN = re.compile(
    r"""
    //[^\n]*                                    # line comment
  | /\*.*?\*/                                   # block comment (nested ones do not occur here)
  | \b[bc]?r(?P<hashes>\#*)".*?"(?P=hashes)     # raw string
  | [bc]?"(?:\\.|[^"\\])*"                      # string
  | b?'(?:\\(?:u\{[^}]*\}|x..|.)|[^'\\\n])'     # character, not a lifetime
    """,
    re.VERBOSE | re.DOTALL,
)
_UNWRAP = re.compile(r"\.(?P<name>unwrap|expect|unwrap_err|expect_err)\s*\(")
_PLACEHOLDER = re.compile(r"\b(?P<name>todo|unimplemented)!")
_PROOF = re.compile(r"// proof: \S")
_SLEEP = re.compile(r"\b(?:thread|time)::sleep(?:_until)?\s*\(")
_SLEEP_MARK = re.compile(r"// sleeps: \S")
_PUB = r"(?:pub(?:\([^)]*\))?\s+)?"
_BODY = re.compile(rf"^[ \t]*{_PUB}(?P<item>(?:(?:const|unsafe|async|extern)\s+)*fn\s+\w+|impl\b[^{{\n]*)", re.MULTILINE)
_TEST_ITEM = re.compile(rf"#\[cfg\((?:test\b|all\(test\b)[^\]]*\]\s*(?:#\[[^\]]*\]\s*)*{_PUB}\w+[^;{{]*(?P<end>[;{{])")


def blank(text: str) -> str:
    """The text with comments, strings and characters as spaces; every line and column stays where it was."""
    return TOKEN.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def masked(text: str) -> str:
    """Like `blank`, but strings and characters become underscores: the rest of a line is code."""
    return TOKEN.sub(lambda found: re.sub(r"[^\n]", " " if found[0].startswith("/") else "_", found[0]), text)


def without_tests(code: str) -> str:
    """Blanked or masked code with `#[cfg(test)]` items blanked too."""
    for found in list(_TEST_ITEM.finditer(code)):
        end = found.end() if found["end"] == ";" else closing(code, found.end() - 1)
        code = code[: found.start()] + re.sub(r"[^\n]", " ", code[found.start() : end]) + code[end:]
    return code


def contents(path: Path, text: str) -> Iterator[Problem]:
    """`lib.rs` is a table of contents: modules and re-exports. The one function allowed is the module initialiser of pyo3."""
    if path.name != "lib.rs":
        return
    code = without_tests(blank(text))
    lines = code.splitlines()
    for found in _BODY.finditer(code):
        number = code.count("\n", 0, found.start("item")) + 1
        above = lines[number - 2] if number > 1 else ""
        if "pymodule" not in above:
            yield Problem(path, number, "contents-only", f"'{found['item'].strip()}' is implemented here; give it a file of its own")


def unwraps(path: Path, text: str) -> Iterator[Problem]:
    """`unwrap` and `expect` only with a proof that they cannot fail, on the line or on the one above the statement."""
    if path.suffix != ".rs" or is_test(path) or path.name == "build.rs":
        return
    lines = text.splitlines()
    for number, line in enumerate(without_tests(blank(text)).splitlines(), 1):
        for found in _UNWRAP.finditer(line):
            if not _proved(lines, number):
                yield Problem(path, number, "unwrap", f"'{found['name']}' without a '// proof: <why it cannot fail>'")
        for found in _PLACEHOLDER.finditer(line):
            yield Problem(path, number, "placeholder", f"'{found['name']}!' in code that ships")


def sleeps(path: Path, text: str) -> Iterator[Problem]:
    """No sleep in a test: in test files and in `#[cfg(test)]` items."""
    if path.suffix != ".rs":
        return
    code = blank(text)
    shipped = "" if is_test(path) else without_tests(code)
    lines, kept = text.splitlines(), shipped.splitlines()
    for number, line in enumerate(code.splitlines(), 1):
        of_test = number > len(kept) or line != kept[number - 1]
        if of_test and _SLEEP.search(line) and not _SLEEP_MARK.search(lines[number - 1]):
            yield Problem(path, number, "sleep", "a sleep in a test; use the clock of the test, or say why: '// sleeps: <reason>'")


def closing(code: str, opening: int) -> int:
    """Index after the brace that closes the one at `opening`."""
    depth = 0
    for index in range(opening, len(code)):
        if code[index] == "{":
            depth += 1
        elif code[index] == "}":
            depth -= 1
            if depth == 0:
                return index + 1
    return len(code)


def _proved(lines: list[str], number: int) -> bool:
    """A proof on the line, or above the statement that the line continues (a chain of calls)."""
    index = number - 1
    while True:
        if _PROOF.search(lines[index]):
            return True
        if index > 0 and lines[index - 1].lstrip().startswith("//"):
            index -= 1
        elif index > 0 and lines[index].lstrip().startswith("."):
            index -= 1
        else:
            return False
