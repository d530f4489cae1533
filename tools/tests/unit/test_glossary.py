"""The check of the glossary: order, length, sentences and pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.project import ROOT
from tools.style import glossary

HEAD = "| term | definition | page |\n|---|---|---|\n"


def problems(table: str, path: Path = glossary.GLOSSARY) -> list[tuple[str, int]]:
    return [(problem.rule, problem.line) for problem in glossary.rows(path, HEAD + table)]


@pytest.mark.parametrize(
    ("row", "rule"),
    [
        ("| Aardvark | It runs. | [page](page.md) |", "glossary-order"),
        ("| actor | It runs again. | [page](page.md) |", "glossary-order"),
        ("| rank | It runs. It waits. It stops. | [page](page.md) |", "glossary-definition"),
        ("| rank | a number | [page](page.md) |", "glossary-definition"),
        ("| rank | It runs. | page.md |", "glossary-page"),
    ],
)
def test_row_that_a_newcomer_cannot_use_is_found(row: str, rule: str) -> None:
    table = f"| actor | It runs. | [page](page.md) |\n{row}\n"
    assert problems(table) == [(rule, 4)]
    assert problems(table, Path("docs/other.md")) == []


def test_entry_above_the_limit_is_found() -> None:
    table = "".join(f"| term {number:03} | It runs. | [page](page.md) |\n" for number in range(glossary.ENTRIES + 1))
    assert problems(table) == [("long-glossary", glossary.ENTRIES + 3)]


def test_glossary_of_the_project_has_entries() -> None:
    assert len(list(glossary.entries((ROOT / glossary.GLOSSARY).read_text(encoding="utf-8")))) > 50
