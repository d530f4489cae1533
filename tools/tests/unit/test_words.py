"""Private words and subjects that are no noun are refused in pages, docstrings and comments."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.check_style import check
from tools.style import prose, words

PAGE = Path("docs/x.md")


def lines(text: str) -> list[int]:
    return [problem.line for problem in words.page(PAGE, text)]


def reported(text: str) -> list[str]:
    return [problem.text.split("'")[1] for problem in words.page(PAGE, text)]


@pytest.mark.parametrize(
    "text",
    [
        "one trunk",
        "the Heart of a session",
        "a sign of\nlife",
        "the agent has a door",
        "a guest asks",
        "the far side",
        "memory that is lent",
        "hosts below it",
        "a tree of joins",
        "the client adopts it",
        "the owner is told",
        "the agent says so",
        "it was heard",
        "Somebody waits",
        "whoever asks",
        "what becomes of it",
        "it makes no sense",
        "an answer of nonsense",
        "no one waits",
        "anyone may read it",
        "the census of an agent",
        "within so long",
    ],
)
def test_private_word_is_refused(text: str) -> None:
    assert len(lines(text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "so far, a path on the way, still running, a line of text",
        "a notebook cell and a slot of SLURM",
        "opening a connection; a piece of work; it fetches a package",
        "foretold, heartbeat, doorway, guesthouse, two-lane-wide, essays",
        "the user who asked",
    ],
)
def test_ordinary_english_is_not_refused(text: str) -> None:
    assert lines(text) == []


def test_subject_who_is_refused() -> None:
    assert reported("Who relays a join can refuse.\n- Who asks gets it.\nIt ends. Who waits fails.\n") == ["Who"] * 3
    assert reported("## Who am I?\n\n[Who am I?](#who-am-i) Who asks?\n") == []


@pytest.mark.parametrize("subject", ["What", "Whatever", "Those", "One that", "Of a", "Of each"])
def test_sentence_without_a_noun_is_refused(subject: str) -> None:
    assert reported(f"{subject} host fails.\n- It ends. {subject} host ends.\n| a | {subject} host |\n") == [subject] * 3
    assert reported(f"## {subject} host\n") == []


def test_questions_labels_and_demonstratives_are_sentences() -> None:
    assert reported("What ends?\nWhat always holds: it ends.\nThose hosts end. One host ends. Of course.\n") == []


def test_decisions_keep_their_sentences() -> None:
    assert not list(words.page(Path("docs/adr/0001-x.md"), "What ends is lost.\n"))
    assert len(list(words.page(Path("docs/adr/0001-x.md"), "a trunk\n"))) == 1


def test_code_comments_and_targets_are_no_prose() -> None:
    text = "`trunk` ``a `trunk` of`` [x](trunk.md)\n<!-- trunk -->\n```\ntrunk\n```\n  ~~~\n  trunk\n  ~~~\n"
    assert lines(text) == []
    assert prose.markdown(text).count("\n") == text.count("\n")
    assert lines(f"{text}a trunk\n") == [9]


def test_unclosed_tick_hides_its_paragraph_only() -> None:
    assert lines("a `broken span\n\na trunk `x`\n") == [3]


def test_finding_names_the_term_to_write() -> None:
    (problem,) = words.page(PAGE, "the trunk\n")
    assert str(problem) == "docs/x.md:1: plain-words: 'trunk'; write: session (between two agents), connection (its TCP connections)"


@pytest.mark.parametrize("name", sorted(words.KEPT))
def test_records_keep_their_words(name: str) -> None:
    assert list(words.page(Path(name), "a trunk\n")) == []


def test_docstrings_and_comments_of_python_are_read() -> None:
    text = '"""A trunk.\n\nA `trunk`.\n"""\n\ntrunk = "# a trunk"  # a trunk\n\n\nclass C:\n    def f(self):\n        """It tells."""\n'
    assert [problem.line for problem in words.comments(Path("a.py"), text)] == [1, 6, 11]
    assert list(words.comments(Path("a.py"), "def (")) == []


def test_doc_and_line_comments_of_rust_are_read() -> None:
    text = '//! A trunk.\n// a trunk\nfn f<\'a>() {\n    /// It `tells` and tells.\n    let x = "// a trunk"; // a trunk\n}\n'
    assert [problem.line for problem in words.comments(Path("b.rs"), text)] == [1, 2, 4, 5]


@pytest.mark.parametrize("code", ['r#"" // trunk"#', '"\\" // trunk"', "('\"', '\"') // a", "'\\\\' // b", "b'\\'' // c", "'\\u{22}' // d"])
def test_slashes_in_rust_strings_begin_no_comment(code: str) -> None:
    assert list(words.comments(Path("b.rs"), f"let x = {code};\n// a trunk\n"))[0].line == 2


def test_style_step_reads_pages(tmp_path: Path) -> None:
    (tmp_path / "x.md").write_text("# Title\n\na trunk\n")
    assert [(problem.rule, problem.line) for problem in check(tmp_path, [Path("x.md")])] == [("plain-words", 3)]


@pytest.mark.parametrize(
    "text",
    [
        "class Guests: ...",
        "def tell_owner(): ...",
        "def f(mover): ...",
        "PATIENCE = 1",
        "self.is_lent = 1",
        "import x as heart",
        "HTTPTrunk = 1",
        "def _what_failed(): ...",
        "WhoAsks = 1",
    ],
)
def test_private_word_in_a_name_is_refused(text: str) -> None:
    (problem,) = words.names(Path("packages/x/python/x.py"), text)
    assert problem.rule == "plain-names"


@pytest.mark.parametrize("text", ["doorway = 1", "def tell(): ...", "use(mover)", "mover.use()", "essays = 1"])
def test_other_names_are_not_refused(text: str) -> None:
    assert not list(words.names(Path("packages/x/python/x.py"), text))


def test_names_are_checked_in_wheels_only() -> None:
    (problem,) = words.names(Path("packages/x/python/graves.py"), "")
    assert problem.line == 0
    assert not list(words.names(Path("tools/graves.py"), "")) and not list(words.names(Path("packages/x/tests/graves.py"), ""))
