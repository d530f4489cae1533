"""The numbers of the structure: circles of modules in both languages, the spread of a type, and a table that no number exceeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import structure


@pytest.mark.parametrize(
    ("graph", "found"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set[str]()}, []),
        ({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}, [["a", "b", "c"]]),
        ({"a": {"b", "c"}, "b": {"a"}, "c": {"d"}, "d": {"e"}, "e": {"c"}}, [["c", "d", "e"], ["a", "b"]]),
    ],
)
def test_circles_are_strongly_connected_parts(graph: dict[str, set[str]], found: list[list[str]]) -> None:
    assert structure.circles(graph) == found


def _crate(folder: Path, **texts: str) -> Path:
    for name, text in texts.items():
        path = folder / f"{name.replace('__', '/')}.rs"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return folder


def test_rust_paths_name_their_modules(tmp_path: Path) -> None:
    crate = _crate(
        tmp_path,
        lib="mod a;\nmod b;\n",
        a__mod="mod c;\nuse crate::b::{self, D, e::{F as G}};\nuse std::fmt;\n",
        a__c='use super::X;\n// use crate::b;\nlet y = "crate::b";\n#[cfg(test)]\nmod tests {\n    use crate::b::D;\n}\n',
        b="fn f() -> crate::a::c::Y { super::g() }\n",
    )
    assert structure.rust_graph(crate) == {
        "crate": set(),
        "crate::a": {"crate::b"},
        "crate::a::c": {"crate::a"},
        "crate::b": {"crate::a::c", "crate"},
    }


def test_spread_counts_files_of_a_type(tmp_path: Path) -> None:
    crate = _crate(
        tmp_path,
        a="impl Node {}\nimpl<T: Copy> Trait<T> for super::Node {}\n",
        b="impl Node {}\nimpl Drop for Part {}\n",
        c="struct Node;\n",
    )
    assert structure.spread(crate) == ("Node", 2)


def test_imports_for_types_are_edges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "structured"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from structured.b import B\n")
    (package / "b.py").write_text("def f():\n    from structured import a\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert structure.circles(structure.python_graph("structured")) == [["structured.a", "structured.b"]]


def test_private_attributes_of_other_objects_are_counted() -> None:
    own = "self._a = cls._b\nsuper()._c()\nx.__dict__\nself.x.a"
    assert structure.private_uses(own) == 0
    assert structure.private_uses("x._a\nself.x._a = f()._b") == 3


@pytest.mark.parametrize("definition", ["def _a(self): ...", "_a: int", "__slots__ = ('_a',)", "def f(self): self._a = 1"])
def test_private_attributes_of_the_own_class_count_not(definition: str) -> None:
    source = f"class A:\n    {definition}\n    def g(self, other): other._a"
    assert structure.private_uses(source) == 0
    assert structure.private_uses(f"{source}; other._b\nx._a") == 2


def test_documented_names_of_python_count_not() -> None:
    assert structure.private_uses("x._replace(a=1)._asdict()\nos._exit(1)") == 0


@pytest.mark.parametrize(("now", "current"), [("| a | 1,000 |", True), ("| a | 1,001 |", False), ("| a | 3 |\n| b | 1 |", False)])
def test_higher_number_makes_the_table_stale(now: str, current: bool) -> None:
    head = "| number | now |\n|---|---|\n"
    assert structure.is_current(f"{head}| a | 1,000 |\n", f"{head}{now}\n") is current
