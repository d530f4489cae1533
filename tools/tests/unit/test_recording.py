"""The animated picture of the demo, from its output."""

from __future__ import annotations

import re
import xml.etree.ElementTree

from tools import recording
from tools.project import ROOT
from tools.recording import COLUMNS, ROWS, Line

TEXT = "{http://www.w3.org/2000/svg}text"


def test_long_line_is_folded_with_its_style() -> None:
    found = recording.lines([(1.0, "\x1b[31m" + "x" * COLUMNS), (2.0, "y\x1b[0m z\r\nlast")])
    assert found == [Line(2.0, (("x" * COLUMNS, "red"),)), Line(2.0, (("y", "red"), (" z", "")))]


def test_output_of_a_terminal_has_times() -> None:
    output, code = recording.record(["sh", "-c", "echo one; exit 3"])
    assert code == 3 and "".join(text for _, text in output).split() == ["one"]


def test_picture_has_each_line_in_a_window() -> None:
    shown = [Line(float(n), ((f"<{n}>", "dim"),)) for n in range(ROWS + 2)]
    page = recording.picture(shown)
    rows = list(xml.etree.ElementTree.fromstring(page).iter(TEXT))
    assert ["".join(row.itertext()) for row in rows] == [f"<{n}>" for n in range(ROWS + 2)]
    assert page.count("translateY(-17px)") == 1 and page.count("translateY(-34px)") == 2


def test_picture_of_the_readme_is_of_this_demo() -> None:
    picture = xml.etree.ElementTree.parse(ROOT / "docs" / "images" / "demo.svg")
    shown = "\n".join("".join(row.itertext()) for row in picture.iter(TEXT))
    source = (ROOT / "packages/monarch-core/python/monarch/_core/cli/demo.py").read_text(encoding="utf-8")
    codes = [code for _, code in re.findall(r"demo\.run\((['\"])(.*)\1", source)]
    assert len(codes) > 5 and all(f">>> {code}" in shown for code in codes)
    assert (ROOT / "README.md").read_text(encoding="utf-8").count("docs/images/demo.svg") == 1
