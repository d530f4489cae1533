"""Builds the site of the documentation from the pages of the repository.

    python -m tools.site [--serve] [FOLDER]     site/ by default

It runs MkDocs on a copy of the pages with the folders of the repository, so that the links of a page lead to the same page on the site. The
navigation is the index in docs/README.md. A page of the interface is made for each public module, from the docstrings. Beside each page is
its Markdown, and llms.txt lists all pages, for programs that read text.

A link that leads nowhere and an anchor that does not exist end the build with exit code 1.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import yaml

from tools.check_api import NEED_TORCH, WHEELS
from tools.project import ROOT
from tools.site import diagrams, interface

# Folders whose pages are nested in the navigation, with the title there.
_NESTED = {"adr": "Decisions", "bench": "Benchmarks", "cookbook": "Cookbook", "failures": "Failures"}
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")
_FENCE = re.compile(r"^(\s*```python) no-run$", re.MULTILINE)
_ROW = re.compile(r"^\| (.+?) \| (.+?) \|$")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.site")
    parser.add_argument("--serve", action="store_true", help="serve the site on this machine in place of writing it")
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "site")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="site-") as scratch:
        pages = Path(scratch, "pages")
        stage(pages)
        config = Path(scratch, "mkdocs.yml")
        config.write_text(yaml.safe_dump({"INHERIT": str(ROOT / "mkdocs.yml"), "docs_dir": str(pages), "nav": navigation(pages)}))
        command = [sys.executable, "-m", "mkdocs", "serve" if arguments.serve else "build", "--config-file", str(config)]
        if not arguments.serve:
            command += ["--site-dir", str(arguments.folder.resolve())]
        code = subprocess.run(command, check=False, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}).returncode
        if not code and not arguments.serve:
            texts(pages, arguments.folder)
    return code


def stage(pages: Path) -> None:
    """Copies the pages, and what they link to, with the folders of the repository; adds the pages of the interface."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout.split("\0")
    for name in map(Path, filter(None, listed)):
        if name.suffix == ".md":
            _write(pages / name, _staged((ROOT / name).read_text(encoding="utf-8"), name.parent))
        elif name.parts[0] in ("docs", "examples"):
            _copy(name, pages)
    for page in list(pages.rglob("*.md")):
        for found in _LINK.finditer(page.read_text(encoding="utf-8")):
            target = Path(os.path.normpath(page.parent.relative_to(pages) / found[2]))
            if (ROOT / target).is_file():
                _copy(target, pages)
            elif target.name == "index.md" and not (pages / target).exists():
                _list(pages / target.parent)
    for module, wheel in _modules():
        _write(pages / "interface" / f"{module}.md", interface.page(module, wheel))
    for page in pages.rglob("*.md"):
        if diagrams.FENCE in page.read_text(encoding="utf-8"):
            _add_diagrams(page, pages / "mermaid.min.js")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _copy(name: Path, pages: Path) -> None:
    if not (pages / name).exists():
        (pages / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, pages / name)


def _add_diagrams(page: Path, script: Path) -> None:
    if not script.exists():
        script.write_bytes(diagrams.script())
    with page.open("a", encoding="utf-8") as file:
        file.write(f'\n<script src="{os.path.relpath(script, page.parent)}"></script>\n')


def _modules() -> Iterator[tuple[str, str]]:
    """Public modules and their wheels, without those whose requirements are not here."""
    for wheel, modules in WHEELS.items():
        if wheel not in NEED_TORCH or find_spec("torch"):
            yield from ((module, wheel) for module in modules)


def _staged(text: str, folder: Path) -> str:
    """The page with a title for code that the script of the page does not have, and with links to folders leading to their index."""

    def link(found: re.Match[str]) -> str:
        target = ROOT / folder / found[2]
        if "://" in found[2] or not target.is_dir():
            return found[0]
        index = "README.md" if (target / "README.md").exists() else "index.md"
        return f"[{found[1]}]({found[2].rstrip('/')}/{index}{found[3] or ''})"

    return _FENCE.sub(r'\1 title="not part of the script of this page"', _LINK.sub(link, text))


def _list(folder: Path) -> None:
    """An index of a folder without a page of its own."""
    names = sorted(path.name for path in folder.iterdir())
    (folder / "index.md").write_text(
        "\n".join([f"# {folder.name}", "", *(f"- [{name}]({name})" for name in names)]) + "\n", encoding="utf-8"
    )


def navigation(pages: Path) -> list[dict[str, object]]:
    """The sections of docs/README.md with their pages, and the interface."""
    sections: list[dict[str, object]] = [{"Monarch": "README.md"}]
    text = (pages / "docs" / "README.md").read_text(encoding="utf-8")
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        entries: list[object] = ["docs/README.md"] if title == "Start" else []
        for row in body.splitlines():
            if (cells := _ROW.match(row)) is None:
                continue
            for found in _LINK.finditer(cells[1]):
                entries += _entry(pages, (pages / "docs" / found[2]).resolve().relative_to(pages.resolve()))
        if title == "Reference":
            entries.insert(0, {"Python interface": [f"interface/{module}.md" for module, _ in _modules()]})
        sections.append({title: entries})
    return sections


def _entry(pages: Path, page: Path) -> Iterator[object]:
    if page.parent.name in _NESTED:
        if page.name != "README.md":
            return
        others = sorted(path.relative_to(pages) for path in (pages / page.parent).glob("*.md") if path.name != "README.md")
        yield {_NESTED[page.parent.name]: [str(page), *map(str, others)]}
    elif page.suffix == ".md":
        yield str(page)


def texts(pages: Path, site: Path) -> None:
    """Puts the Markdown of each page beside it, and the list of the pages into llms.txt."""
    lines = ["# Monarch", "", "> A cluster programmable from one Python script.", ""]
    for page in sorted(pages.rglob("*.md")):
        name = page.relative_to(pages)
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        text = page.read_text(encoding="utf-8").partition("\n<script src=")[0]
        (site / name).write_text(text, encoding="utf-8")
        title = next((line for line in text.splitlines() if line.startswith("# ")), str(name)).removeprefix("# ")
        lines.append(f"- [{title}]({name})")
    (site / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
