"""Private words in the names that Rust files define: files, items, variants, fields, parameters and locals."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tools.style import rust, words
from tools.style.problem import Problem

# Whole names, their words in lower case and separated by spaces. Inside of longer names, ordinary English needs these words.
REFUSED: tuple[tuple[str, str], ...] = (
    (r"(?:is |stand )?still", "paused"),
    (r"who", "the noun: requester, subject, user"),
    (r"(?:is )?far", "remote"),
    (r"crew", "worker pool"),
    (r"strangers?", "unauthenticated peer"),
)
_DEFINED = re.compile(
    r"\b(?:fn|struct|enum|union|trait|type|const|static|mod|let)\s+(?:mut\s+)?(?P<name>[A-Za-z_]\w*)"  # an item or a local
    r"|(?:^|[(,{|])\s*(?:pub(?:\([^)]*\))?\s+)?(?:mut\s+)?(?P<field>[a-z_]\w*)\s*:(?!:)",  # a field or a parameter
    re.MULTILINE,
)
_ENUM = re.compile(r"\benum\s+\w+[^{;]*(?P<open>\{)")
_NESTED = re.compile(r"\([^()]*\)|\{[^{}]*\}|\[[^\[\]]*\]")
_VARIANT = re.compile(r"\b[A-Z]\w*")
# Names that are left: in the bridge, an argument that Python sees.
LEFT = {"bridge": frozenset({"who"})}


def rust_names(path: Path, text: str) -> Iterator[Problem]:
    """No private words in the names of files, items, fields, parameters and locals that are defined here."""
    if path.suffix != ".rs":
        return
    code = rust.blank(text)
    exempt = frozenset[str]().union(*(names for crate, names in LEFT.items() if crate in path.parts))
    for start, name in [(-1, path.stem), *sorted(_defined(code))]:
        for word, instead in [] if name in exempt else refused(name):
            line = code.count("\n", 0, start) + 1 if start >= 0 else 0
            yield Problem(path, line, "plain-names", f"'{word}' in '{name}'; write: {instead}")


def refused(name: str) -> list[tuple[str, str]]:
    """The refused words of a name, or the name if it is refused as a whole; each with the term to write instead."""
    phrase = " ".join(words.words_of(name)).lower()
    return [(name, instead) for pattern, instead in REFUSED if re.fullmatch(pattern, phrase)] or words.refused(name)


def _defined(code: str) -> Iterator[tuple[int, str]]:
    """Offset and name of each definition in blanked code."""
    for found in _DEFINED.finditer(code):
        kind = "name" if found["name"] else "field"
        yield found.start(kind), found[kind]
    for found in _ENUM.finditer(code):
        start = found.end("open")
        body = code[start : rust.closing(code, start - 1) - 1]
        while (flat := _NESTED.sub(lambda inner: " " * len(inner[0]), body)) != body:
            body = flat
        yield from ((start + variant.start(), variant[0]) for variant in _VARIANT.finditer(body))
