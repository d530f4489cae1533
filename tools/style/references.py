"""The targets of a Markdown page exist: those of its links, the tests that it names, and the files that a map names.

Each failure, each invariant and each defence names the test that shows it. The index of the documentation lists every page.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote

from tools.project import files
from tools.style import prose
from tools.style.problem import Check, Problem

# The folder of the failure tables; a page that a reader searches by eye has at most so many rows.
FAILURES = Path("docs/failures")
ROWS = 60
INDEX, INVARIANTS, SECURITY = Path("docs/README.md"), Path("docs/invariants.md"), Path("SECURITY.md")
# Pages that name files of the code by the ends of their paths.
MAPS = (Path("ARCHITECTURE.md"), Path("docs/glossary.md"), INVARIANTS, SECURITY)
_LINK = re.compile(r"\]\(<?(?P<target>[^()<>\s]+)>?(?:\s+\"[^\"]*\")?\)")
_HEADING = re.compile(r"^#{1,6}[ ]+(?P<text>.+?)[ ]*#*$", re.MULTILINE)
_ANCHOR = re.compile(r"<a\s+(?:id|name)=\"(?P<name>[^\"]+)\"")
_TEST = re.compile(r"`(?P<file>(?:[\w.-]+/)*[\w-]+\.(?:py|rs))::(?P<name>\w+)`")
_FILE = re.compile(r"`(?P<file>(?:[\w-]+/)+[\w-]+\.(?:py|rs))`")
_ITEM = re.compile(r"^\d+\. .*(?:\n(?!\d+\. |#).*)*", re.MULTILINE)
_RUST_TEST = re.compile(r"`(?P<file>rust/[\w./-]+\.rs)`")


def checks(root: Path) -> tuple[Check, ...]:
    """The checks for pages of the checkout at `root`."""
    tests = _tests(root)

    @cache
    def anchors(path: Path) -> frozenset[str]:
        return _anchors(path.read_text(encoding="utf-8"))

    def links(path: Path, text: str) -> Iterator[Problem]:
        """Relative links lead to a file of the checkout, and their fragments to a heading of it."""
        page = prose.without_fences(text)
        for found in _LINK.finditer(page):
            target, _, fragment = found["target"].partition("#")
            if re.match(r"[a-z][a-z0-9+.-]*:", target):
                continue
            file = (root / path).parent / unquote(target) if target else root / path
            line = page.count("\n", 0, found.start()) + 1
            if not file.exists():
                yield Problem(path, line, "dead-link", f"there is no '{target}'")
            elif fragment and file.suffix == ".md" and fragment not in anchors(file.resolve()):
                yield Problem(path, line, "dead-link", f"'{target or path.name}' has no heading '#{fragment}'")

    def named_tests(path: Path, text: str) -> Iterator[Problem]:
        """`test_file.py::test_name` and `file.rs::name` are functions of a file of that name."""
        for found in _TEST.finditer(text):
            if not tests(found["file"], found["name"]):
                yield Problem(path, text.count("\n", 0, found.start()) + 1, "no-such-test", f"'{found['file']}::{found['name']}'")

    @cache
    def ends() -> frozenset[str]:
        found: set[str] = set()
        for path in files(root):
            # The map leaves out the folder `src` of a crate.
            for parts in (path.parts, tuple(part for part in path.parts if part != "src")):
                found.update("/".join(parts[at:]) for at in range(len(parts)))
        return frozenset(found)

    def named_files(path: Path, text: str) -> Iterator[Problem]:
        """`folder/file.py` and `folder/file.rs` of the map and the glossary are the ends of paths of the checkout."""
        for found in _FILE.finditer(text) if path in MAPS else ():
            if found["file"] not in ends():
                yield Problem(path, text.count("\n", 0, found.start()) + 1, "no-such-file", f"'{found['file']}'")

    def table_rows(path: Path, text: str) -> Iterator[Problem]:
        """Every failure and every defence has a test; one in Rust may be the path of a file with tests. No table is too long."""
        if path.parent != FAILURES and path != SECURITY:
            return
        for count, (number, line) in enumerate(rows(text), 1):
            if count > ROWS:
                yield Problem(path, number, "long-table", f"row {count} of a page of at most {ROWS}")
            for found in _RUST_TEST.finditer(line):
                file = root / "packages/monarch-core" / found["file"]
                if not file.is_file() or "#[test]" not in file.read_text(encoding="utf-8"):
                    yield Problem(path, number, "no-such-test", f"'{found['file']}'")
            if not _TEST.search(line) and not _RUST_TEST.search(line):
                yield Problem(path, number, "row-without-test", "no test shows this failure or this defence")

    def index(path: Path, text: str) -> Iterator[Problem]:
        """The index of the documentation has a link to every page beside it."""
        linked = {found["target"] for found in _LINK.finditer(text)} if path == INDEX else set[str]()
        for page in sorted((root / path).parent.glob("*.md")) if path == INDEX else ():
            if page.name not in linked | {INDEX.name}:
                yield Problem(path, 0, "page-not-in-index", f"there is no link to '{page.name}'")

    return links, named_tests, named_files, table_rows, invariants, index


def invariants(path: Path, text: str) -> Iterator[Problem]:
    """Every numbered invariant names a test."""
    for found in _ITEM.finditer(text) if path == INVARIANTS else ():
        if not _TEST.search(found[0]):
            number = text.count("\n", 0, found.start()) + 1
            yield Problem(path, number, "invariant-without-test", "no test shows this invariant: `file::test`")


def rows(text: str) -> Iterator[tuple[int, str]]:
    """The rows of the failure tables of a page, with the numbers of their lines: tables whose last column is that of tests."""
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.endswith("| test |"):
            inside = True
        elif not line.startswith("|"):
            inside = False
        elif inside and not line.startswith("|--"):
            yield number, line


def _anchors(text: str) -> frozenset[str]:
    """The fragments that links to this page may have: headings as they are rendered, and explicit anchors."""
    text = prose.without_fences(text)
    names: list[str] = []
    for found in _HEADING.finditer(text):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", found["text"]).lower()
        name = re.sub(r"[^\w\- ]", "", heading).replace(" ", "-")
        names.append(f"{name}-{names.count(name)}" if name in names else name)
    return frozenset(names) | {found["name"] for found in _ANCHOR.finditer(text)}


def _tests(root: Path) -> Callable[[str, str], bool]:
    """Whether a file has a function, by the file's name or the end of its path."""

    @cache
    def paths() -> dict[str, list[Path]]:
        named: dict[str, list[Path]] = {}
        for path in files(root):
            if path.suffix in (".py", ".rs"):
                named.setdefault(path.name, []).append(path)
        return named

    def exists(file: str, name: str) -> bool:
        pattern = re.compile(rf"^ *(?:async )?(?:def|fn) {name}\(", re.MULTILINE)
        below = [path for path in paths().get(Path(file).name, ()) if f"/{path.as_posix()}".endswith(f"/{file}")]
        return any(pattern.search((root / path).read_text(encoding="utf-8")) for path in below)

    return exists
