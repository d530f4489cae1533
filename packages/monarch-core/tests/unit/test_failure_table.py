"""The failure table of ARCHITECTURE.md: every part and every way to go has a row, and every row a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[4]
TESTS = Path(__file__).parents[1]


def rows() -> list[list[str]]:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = text.split("## When something dies", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def _folder(file: str, is_python: bool) -> Path:
    if not is_python:
        return ROOT / "packages/monarch-core"
    if file.startswith("monarch-"):
        return ROOT / "packages"
    if file.startswith("test_rdma_"):
        return ROOT / "packages/monarch-rdma/tests/process"
    if file.startswith("test_verbs_"):
        return ROOT / "packages/monarch-rdma/tests/verbs"
    return TESTS if file.startswith("net/") else TESTS / "process"


def test_every_row_has_a_test():
    found = rows()
    assert len(found) > 20
    for row in found:
        references = re.findall(r"`([^`]+)`", row[-1])
        assert references, row
        for reference in references:
            file, _, name = reference.partition("::")
            text = (_folder(file, bool(name)) / file).read_text(encoding="utf-8")
            assert re.search(rf"^ *(async )?def {name}\(" if name else r"#\[test\]", text, re.MULTILINE), row


def test_every_part_goes_in_every_way():
    ways: dict[str, str] = {}
    for what, how, *_ in rows():
        part = what.split(":")[0]
        ways[part] = f"{ways.get(part, '')} {how};"
    assert {"root", "agent", "proc", "actor", "link", "host", "client of hosts"} <= ways.keys()
    for part in ("root", "agent", "proc", "actor", "host"):
        assert all(way in ways[part] for way in ("exits", "killed", "hangs", "cut off")), (part, ways[part])
    assert "exits, killed" in ways["link"] and "hangs" in ways["link"]
    assert all(way in ways["client of hosts"] for way in ("killed", "hangs", "cut off"))
