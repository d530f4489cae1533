"""Checks on names, sizes and texts of files of any language."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tools.style.problem import Problem

MAX_LINES = 600  # "about 300, a reason needed past 600": no file has had a reason so far
MAX_COLUMNS = 140
SOURCES = {".py", ".pyi", ".rs", ".sh", ".toml"}
VAGUE = {"util", "utils", "common", "manager", "managers", "helper", "helpers", "misc"}

# A folder of a person's machine, at the start of a path.
MACHINE_PATH = re.compile(r"(?<![\w./{}$~-])/(?:work|home|root|farm|Users)/[\w.]")
# A package registry as a download address: an archive, or a host with such a name.
_ARCHIVE = r"[^\s\"'<>)]+\.(?:whl|tar\.gz|tgz|crate|deb|zip)\b"
_REGISTRY = r"[\w.-]*(?:pythonhosted|pypi|crates|npmjs|debian)[\w.-]*"
DOWNLOAD = re.compile(f"https?://(?:{_ARCHIVE}|{_REGISTRY})")


def name(path: Path, _text: str) -> Iterator[Problem]:
    """Meaningless names; a package file in the namespace folder."""
    if path.suffix in SOURCES and VAGUE & set(path.stem.lower().split("_")):
        yield Problem(path, 0, "vague-name", f"'{path.stem}' says nothing; name the file after its noun")
    if path.name in ("__init__.py", "__init__.pyi") and path.parent.name == "monarch" and "monarch-compat" not in path.parts:
        yield Problem(path, 0, "namespace", "'monarch' is a namespace shared by several wheels: only monarch-compat has an __init__")


def equal_test_names(paths: Iterable[Path]) -> Iterator[Problem]:
    """Files of tests with one name: pytest collects one of them, and refuses the others."""
    first: dict[str, Path] = {}
    for path in paths:
        if path.name.startswith("test_") and path.suffix == ".py" and first.setdefault(path.name, path) != path:
            yield Problem(path, 0, "test-file-name", f"{first[path.name]} has the same name: pytest can collect one of them")


def size(path: Path, text: str) -> Iterator[Problem]:
    """Length of files and lines."""
    if path.suffix not in SOURCES:
        return
    lines = text.splitlines()
    if len(lines) > MAX_LINES:
        yield Problem(path, 0, "file-length", f"{len(lines)} lines, the limit is {MAX_LINES}")
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_COLUMNS:
            yield Problem(path, number, "line-length", f"{len(line)} columns, the limit is {MAX_COLUMNS}")


def addresses(path: Path, text: str) -> Iterator[Problem]:
    """Folders of one machine and download addresses, in any text file. Lock files always name the registry."""
    if path.suffix == ".lock":
        return
    for number, line in enumerate(text.splitlines(), 1):
        if found := MACHINE_PATH.search(line):
            yield Problem(path, number, "machine-path", f"'{found[0]}...' exists on one machine only")
        if found := DOWNLOAD.search(line):
            yield Problem(path, number, "download-address", f"'{found[0]}': packages come by name, from the configured index")


_PRIVATE = re.compile(r"monarch[./]_core")


def private_core(path: Path, text: str) -> Iterator[Problem]:
    """No wheel but monarch-core names core's private modules: not in imports, strings that are executed elsewhere, or entry points."""
    parts = path.parts
    if parts[:1] != ("packages",) or parts[1:2] == ("monarch-core",) or "tests" in parts or path.suffix == ".md":
        return
    for number, line in enumerate(text.splitlines(), 1):
        if _PRIVATE.search(line):
            yield Problem(path, number, "private-core", "a private module of core: `monarch.extension` has what other wheels are built on")
