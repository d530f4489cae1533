"""The site of the documentation: what is staged, the navigation, and the text of docstrings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools.project import ROOT
from tools.site import __main__ as site
from tools.site import interface


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    site.stage(folder)
    return folder


def _listed(entry: Any) -> set[str]:
    if isinstance(entry, str):
        return {entry}
    return {page for value in (entry.values() if isinstance(entry, dict) else entry) for page in _listed(value)}


def test_every_page_of_docs_is_in_the_navigation(pages: Path) -> None:
    found = _listed(site.navigation(pages))
    assert {str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")} <= found
    assert {"README.md", "ARCHITECTURE.md", "interface/monarch.actor.md"} <= found
    assert all((pages / name).is_file() for name in found)


def test_folders_are_linked_by_their_index(pages: Path) -> None:
    assert '```python title="not part' in (pages / "docs" / "files.md").read_text()
    assert "](api/index.md)" in (pages / "docs" / "README.md").read_text() and (pages / "docs" / "api" / "index.md").is_file()


def test_docstring_sections_are_lists() -> None:
    text = "Adds.\n\nArgs:\n    a: the first,\n        and more.\n    **rest: others.\n\nReturns:\n    The sum.\n\nThe end."
    expected = "Adds.\n\n\n**Arguments**\n\n- `a`: the first,\n  and more.\n- `**rest`: others.\n\n\n**Returns**\n\nThe sum.\n\nThe end."
    assert interface.markdown(text) == expected


def test_interface_has_signatures_and_members() -> None:
    text = interface.page("monarch.actor", "monarch-core")
    assert "## HostMesh\n" in text and "### HostMesh.spawn_procs\n" in text and "- `per_host`: " in text


def test_broken_link_ends_the_build(tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "index.md").write_text("# A\n\n[absent](absent.md) [anchor](#nothing)\n")
    (tmp_path / "mkdocs.yml").write_text(f"INHERIT: {ROOT / 'mkdocs.yml'}\ndocs_dir: pages\n")
    command = [sys.executable, "-m", "mkdocs", "build", "--config-file", str(tmp_path / "mkdocs.yml")]
    done = subprocess.run([*command, "--site-dir", str(tmp_path / "site")], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1 and "absent.md" in done.stderr and "#nothing" in done.stderr
