"""Private words are refused in the names that Rust files define."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.style import identifiers

SOURCE = Path("rust/net/src/x.rs")


def reported(text: str, path: Path = SOURCE) -> list[tuple[int, str]]:
    return [(problem.line, problem.text.split("'")[-2]) for problem in identifiers.rust_names(path, text)]


@pytest.mark.parametrize("name", ["trunk", "TrunkHandler", "HEART", "attach_heart", "is_still", "nobody", "PATIENCE", "far_host", "Said"])
def test_private_word_in_a_name_is_refused(name: str) -> None:
    assert identifiers.refused(name)


@pytest.mark.parametrize("name", ["heartbeat", "Session", "so_far", "still_open", "TLS13Config", "planes", "_", "essays", "is_who"])
def test_other_names_are_not_refused(name: str) -> None:
    assert identifiers.refused(name) == []


@pytest.mark.parametrize(
    "text",
    [
        "fn lend() {}",
        "struct Lanes;",
        "enum Trunk { A }",
        "enum E { A(u8), Lent { x: u8 } }",
        "struct S { pub(crate) told: u8 }",
        "const PATIENCE: u8 = 1;",
        "mod hearts;",
        "fn f(trunk: &str) {}",
        "fn f() { let mut lane = 1; }",
    ],
)
def test_each_kind_of_definition_is_read(text: str) -> None:
    assert len(reported(text)) == 1


def test_uses_texts_and_comments_are_no_definitions() -> None:
    assert reported('// let lane\nfn f() { g("let lane: u8"); lane.told(Lent); let x = a::lane::b; }\n') == []


def test_finding_names_line_and_file() -> None:
    assert reported("\nfn told() {}\n") == [(2, "told")]
    assert reported("", SOURCE.with_name("trunk.rs")) == [(0, "trunk")]


def test_names_that_are_left_are_exempt() -> None:
    assert reported("fn f(who: u8) {}", Path("rust/bridge/src/x.rs")) == []
    assert reported("fn f(who: u8) {}") == [(1, "who")]
