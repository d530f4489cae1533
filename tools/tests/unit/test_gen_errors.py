"""The generation of the page of errors fails if a code is missing, or exists twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from monarch.actor import MonarchError
from monarch.extension import ErrorRow
from tools import gen_errors
from tools.error_codes import carried

ROW = ErrorRow("word", MonarchError, "a word is not known", "no {word}")
WRONG = ErrorRow("word", ValueError, "x", "y")  # type: ignore[arg-type]


def test_rows_and_codes_that_agree() -> None:
    assert (
        gen_errors.problems([("core", [ErrorRow("error", "MonarchError", "x", "y")]), ("other", [ROW])], {"other": {"word": "a.py:3"}})
        == []
    )


@pytest.mark.parametrize(
    ("tables", "codes", "problem"),
    [
        ([("a", [ROW]), ("b", [ROW])], {}, "b: the code `word` is in a row of a already"),
        ([("a", [ROW, ROW])], {}, "a: the code `word` is in a row of a already"),
        ([("a", [ROW])], {"b": {"phrase": "b/c.py:7"}}, "b: b/c.py:7 has the code `phrase`, which no row declares"),
        ([("a", [WRONG])], {}, "a: `word`: <class 'ValueError'> is not a subclass of MonarchError"),
        ([("a", ["word"])], {}, "a: 'word' is not an ErrorRow"),
    ],
)
def test_each_problem_is_named(tables: list[tuple[str, list[object]]], codes: dict[str, dict[str, str]], problem: str) -> None:
    assert gen_errors.problems(tables, codes) == [problem]


def test_problem_ends_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gen_errors, "of_wheels", lambda group: [("a", [ROW, ROW])])
    # The search for the codes in the sources of all wheels takes seconds.
    monkeypatch.setattr(gen_errors, "carried", lambda folder: {})
    with pytest.raises(SystemExit, match=r"docs/errors.md: a: the code `word` is in a row of a already"):
        gen_errors.text()


def test_codes_are_found_in_classes_and_calls(tmp_path: Path) -> None:
    (tmp_path / "names.py").write_text('GONE = "word_gone"\nOTHER = 3\n')
    (tmp_path / "words.py").write_text(
        'class E(Exception):\n    _default_code = "word"\n\ndef f(code):\n    g(code="phrase")\n'
        '    g(code=GONE)\n    g(code=3, kode="x")\n    g(code=code)\n'
    )
    assert carried(tmp_path) == {"word": "words.py:2", "phrase": "words.py:5", "word_gone": "words.py:6"}
