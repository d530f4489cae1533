"""The licences of the crates whose code is in the native wheel, which has them beside its own licence.

    python -m tools.release.licences [--write]      compares the file of the package, or writes it

The build of the dashboard makes the list of the npm packages in its static files. A crate that several licences allow is used under MIT,
and else under all of them. Crates that run while others are compiled, such as procedural macros, leave no code
in the wheel.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tools.project import CORE, ROOT, RUST

FILE = CORE / "THIRD-PARTY-LICENSES.txt"
_PLATFORMS = ("x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu")
_LICENCE = re.compile(r"(licen[cs]e|copying|notice)", re.IGNORECASE)
_MIT = re.compile(r"mit(?:\.txt|\.md)?$", re.IGNORECASE)
_RULE = "=" * 80


class Used(NamedTuple):
    """A crate: the expression of its licence, and its texts."""

    name: str
    version: str
    expression: str
    texts: tuple[str, ...]


def crates() -> list[Used]:
    """The crates that are linked into the native module, for all platforms of its wheels."""
    found: dict[str, Used] = {}
    for platform in _PLATFORMS:
        argv = ["cargo", "metadata", "--quiet", "--locked", "--format-version", "1", "--filter-platform", platform]
        listed = json.loads(subprocess.run(argv, cwd=RUST / "bridge", check=True, stdout=subprocess.PIPE).stdout)
        packages: dict[str, Any] = {package["id"]: package for package in listed["packages"]}
        links = {node["id"]: node["deps"] for node in listed["resolve"]["nodes"]}
        for name in _linked(listed["resolve"]["root"], packages, links):
            package = packages[name]
            if package["source"] is not None:
                texts = _texts(Path(package["manifest_path"]).parent)
                found[name] = Used(package["name"], package["version"], package["license"] or "", texts)
    return sorted(found.values())


def _linked(root: str, packages: dict[str, Any], links: dict[str, Any]) -> set[str]:
    seen: set[str] = set()
    left = [root]
    while left:
        name = left.pop()
        if name in seen or any("proc-macro" in target["kind"] for target in packages[name]["targets"]):
            continue
        seen.add(name)
        left += [link["pkg"] for link in links[name] if any(kind["kind"] is None for kind in link["dep_kinds"])]
    return seen


def _texts(folder: Path) -> tuple[str, ...]:
    files = sorted(path for path in folder.iterdir() if path.is_file() and _LICENCE.match(path.name))
    files = [path for path in files if _MIT.search(path.name)] or files
    return tuple(path.read_text(encoding="utf-8").strip() for path in files)


def page(used: list[Used]) -> str:
    """The text of the file; a licence that several packages have is there once."""
    by_text: dict[str, list[Used]] = {}
    for package in used:
        if not package.texts:
            raise ValueError(f"{package.name} {package.version} has no text of its licence ({package.expression})")
        for text in package.texts:
            by_text.setdefault("\n".join(line.rstrip() for line in text.splitlines()), []).append(package)
    return "\n".join(["This wheel has code of these projects, each under its licence.", "", *_lines(used, by_text), ""])


def _lines(used: list[Used], by_text: dict[str, list[Used]]) -> Iterator[str]:
    for package in used:
        yield f"{package.name} {package.version}: {package.expression}"
    for text, packages in by_text.items():
        yield from ("", _RULE, ", ".join(f"{package.name} {package.version}" for package in packages), _RULE, "", text)


def problems() -> list[str]:
    """The problem of a file that does not fit the lock file."""
    fits = FILE.is_file() and FILE.read_text(encoding="utf-8") == page(crates())
    return [] if fits else [f"{FILE.relative_to(ROOT)}: out of date: python -m tools.release.licences --write"]


def main(arguments: list[str]) -> int:
    if arguments == ["--write"]:
        FILE.write_text(page(crates()), encoding="utf-8")
        return 0
    found = problems()
    print("\n".join(found) or "licences: up to date")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
