"""A long test name, one without a noun at its begin and one with a private word are refused, in both languages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tools.check_style import check
from tools.style import titles

EIGHT = "one_two_three_four_five_six_seven_eight"


def python(name: str) -> list[str]:
    return [problem.text for problem in titles.python_tests(Path("tests/test_x.py"), f"\nasync def test_{name}():\n    pass\n")]


def rust(name: str) -> list[str]:
    text = f"mod tests {{\n    /// Text.\n    #[test]\n    // why\n    #[cfg(unix)]\n    fn {name}() {{}}\n}}\n"
    return [problem.text for problem in titles.rust_tests(Path("net/tests/x.rs"), text)]


@pytest.mark.parametrize("problems", [python, rust])
def test_name_of_nine_words_is_refused(problems: Callable[[str], list[str]]) -> None:
    assert problems(EIGHT) == []
    (text,) = problems(f"{EIGHT}_nine")
    assert text == f"'{EIGHT}_nine' has 9 words; state the checked fact in at most 8"


@pytest.mark.parametrize("problems", [python, rust])
@pytest.mark.parametrize("first", ["a", "the", "what", "nobody"])
def test_name_begins_with_its_noun(problems: Callable[[str], list[str]], first: str) -> None:
    assert any(f"begins with '{first}'; begin with the noun" in text for text in problems(f"{first}_host_is_lost"))
    assert problems("host_that_is_lost_has_a_reason") == []


@pytest.mark.parametrize("problems", [python, rust])
def test_private_word_in_a_name_is_refused(problems: Callable[[str], list[str]]) -> None:
    (text,) = problems("owner_is_told_once")
    assert text == "'told' in 'owner_is_told_once'; write: notifies, is notified, reports, sends"


def test_only_test_functions_are_checked() -> None:
    name = f"{EIGHT}_nine"
    assert list(titles.python_tests(Path("tests/x.py"), f"def test_{name}(): ...\n")) == []
    assert list(titles.python_tests(Path("tests/test_x.py"), f"def {name}(): ...\ndef (")) == []
    assert list(titles.rust_tests(Path("x.rs"), f"fn {name}() {{}}\n// #[test]\nfn other_{name}() {{}}\n")) == []


def test_problem_has_the_line_of_the_name(tmp_path: Path) -> None:
    for name, text in (("test_x.py", "\n\ndef test_the_host(): ...\n"), ("x.rs", "#[test]\n\nfn the_host() {}\n")):
        (tmp_path / name).write_text(text)
        assert [(one.rule, one.line) for one in check(tmp_path, [Path(name)])] == [("test-name", 3)]
