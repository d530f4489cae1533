"""Links of pages and the tests that pages name are checked; and the failure tables cover every component and every failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.check_style import check
from tools.project import ROOT
from tools.style.references import FAILURES, ROWS, rows

PAGES = sorted(path for path in (ROOT / FAILURES).glob("*.md") if path.name != "README.md")


def problems(root: Path, name: str) -> list[tuple[str, int]]:
    return [(problem.rule, problem.line) for problem in check(root, [Path(name)])]


def page(root: Path, name: str, text: str) -> list[tuple[str, int]]:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return problems(root, name)


def test_dead_links_are_found(tmp_path: Path) -> None:
    page(tmp_path, "docs/other.md", "# Other page\n\n## What `it` is, now\n")
    assert page(tmp_path, "docs/a.md", "[x](other.md)\n[y](missing.md)\n") == [("dead-link", 2)]
    assert page(tmp_path, "a.md", "[x](docs/other.md#what-it-is-now) and\n[y](docs/other.md#elsewhere)\n") == [("dead-link", 2)]
    assert page(tmp_path, "b.md", "# Own\n[x](#own) [y](#other)\n[web](https://example.org/missing.md)\n") == [("dead-link", 2)]


def test_links_in_code_blocks_are_not_links(tmp_path: Path) -> None:
    assert page(tmp_path, "a.md", "```\n[x](missing.md)\n```\n<!-- [x](missing.md) -->\n") == []


def test_repeated_heading_has_a_number(tmp_path: Path) -> None:
    assert page(tmp_path, "a.md", "# Same\n\n# Same\n\n[x](#same-1) [y](#same-2)\n") == [("dead-link", 5)]


def test_named_tests_must_exist(tmp_path: Path) -> None:
    source = tmp_path / "packages" / "p" / "tests" / "net" / "test_x.py"
    source.parent.mkdir(parents=True)
    source.write_text("async def test_it() -> None: ...\n")
    assert page(tmp_path, "a.md", "`test_x.py::test_it` `net/test_x.py::test_it`\n") == []
    assert page(tmp_path, "a.md", "\n`test_x.py::test_that`\n`unit/test_x.py::test_it`\n") == [("no-such-test", 2), ("no-such-test", 3)]


def test_named_rust_tests_must_exist(tmp_path: Path) -> None:
    source = tmp_path / "packages/monarch-core/rust/net/tests/x.rs"
    source.parent.mkdir(parents=True)
    source.write_text("#[test]\nfn it() {}\n")
    assert page(tmp_path, "a.md", "`x.rs::it` `net/tests/x.rs::it`\n") == []
    assert page(tmp_path, "a.md", "`x.rs::that`\n`wire/tests/x.rs::it`\n") == [("no-such-test", 1), ("no-such-test", 2)]


def test_invariant_without_a_test_is_found(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text("def test_it(): ...\n")
    items = "# Invariants\n\n1. One.\n   - Tests: `test_x.py::test_it`.\n2. Two,\n   in two lines.\n\n## Tests\n\n`test_x.py::test_it`\n"
    assert page(tmp_path, "docs/invariants.md", items) == [("invariant-without-test", 5)]
    assert page(tmp_path, "docs/other.md", items) == []


def test_defence_without_a_test_is_found(tmp_path: Path) -> None:
    assert page(tmp_path, "SECURITY.md", "| defence | test |\n|---|---|\n| It is private. | |\n") == [("row-without-test", 3)]


def test_index_lists_every_page(tmp_path: Path) -> None:
    page(tmp_path, "docs/a.md", "# A\n")
    assert page(tmp_path, "docs/README.md", "[a](a.md)\n") == []
    assert page(tmp_path, "docs/README.md", "# Pages\n") == [("page-not-in-index", 0)]


def test_files_of_the_glossary_must_exist(tmp_path: Path) -> None:
    for name in ("packages/p/python/monarch/job/allocation.py", "packages/p/rust/net/src/link.rs"):
        source = tmp_path / name
        source.parent.mkdir(parents=True)
        source.write_text("")
    good = "`job/allocation.py` `net/link.rs` `net/src/link.rs` `link.rs`\n"
    assert page(tmp_path, "docs/glossary.md", f"{good}`job/_lifecycle.py`\n") == [("no-such-file", 2)]
    assert page(tmp_path, "docs/other.md", "`job/_lifecycle.py`\n") == []


@pytest.mark.parametrize("cell", ["", "`agent.rs`", "a reader"])
def test_failure_without_a_test_is_found(tmp_path: Path, cell: str) -> None:
    head = "| failure | test |\n|---|---|\n"
    assert page(tmp_path, "docs/failures/a.md", f"{head}| The proc exits. | {cell} |\n") == [("row-without-test", 3)]
    assert page(tmp_path, "docs/other.md", f"{head}| The proc exits. | {cell} |\n") == []


def test_rust_test_is_a_file_with_tests(tmp_path: Path) -> None:
    source = tmp_path / "packages/monarch-core/rust/net/tests/x.rs"
    source.parent.mkdir(parents=True)
    source.write_text("#[test]\nfn it() {}\n")
    row = "| failure | test |\n|---|---|\n| It hangs. | `rust/net/tests/{}.rs` |\n"
    assert page(tmp_path, "docs/failures/a.md", row.format("x")) == []
    assert page(tmp_path, "docs/failures/a.md", row.format("y")) == [("no-such-test", 3)]


def test_table_of_too_many_rows_is_found(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text("def test_it(): ...\n")
    table = "| failure | test |\n|---|---|\n" + "| It ends. | `test_x.py::test_it` |\n" * (ROWS + 1)
    assert page(tmp_path, "docs/failures/a.md", table) == [("long-table", ROWS + 3)]


def cells(path: Path) -> list[list[str]]:
    """The rows of the failure table of a page, as cells."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for _, line in rows(path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_rows_of_the_failure_tables_are_complete(path: Path) -> None:
    table = cells(path)
    assert table and f"]({path.name})" in (path.parent / "README.md").read_text(encoding="utf-8")
    for row in table:
        assert len(row) == 5 and all(row), row
        assert all(cell.endswith(".") for cell in row[:4]), row


@pytest.mark.parametrize("name", ["client", "hosts", "procs", "actors"])
def test_every_component_fails_in_every_way(name: str) -> None:
    failures = " ".join(row[0] for row in cells(ROOT / FAILURES / f"{name}.md"))
    assert all(way in failures for way in ("exits", "killed", "hangs", "cut off"))
