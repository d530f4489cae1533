"""The map of components: dependencies between components, the arrows of a drawing, and the page that is made of both."""

from __future__ import annotations

import pytest

from tools import component_map


def test_folded_graph_has_no_inner_edges() -> None:
    graph = {"a.one": {"a.two", "b.one"}, "a.two": {"c"}, "b.one": {"a.one"}, "c": {"a.one"}}
    component = {"a.one": "a", "a.two": "a", "b.one": "b"}
    assert component_map.folded(graph, component) == {"a": {"b"}, "b": {"a"}}


@pytest.mark.parametrize(
    ("graph", "drawn"),
    [
        pytest.param({"a": {"b", "c"}, "b": {"c"}, "c": set[str]()}, [("a", "-->", "b"), ("b", "-->", "c")], id="implied"),
        pytest.param({"a": {"b"}, "b": {"a"}}, [("a", "<-->", "b")], id="both ways"),
        pytest.param(
            {"a": {"b", "d"}, "b": {"c"}, "c": {"a", "d"}, "d": set[str]()},
            [("a", "-->", "b"), ("a", "-->", "d"), ("b", "-->", "c"), ("c", "-->", "a")],
            id="circle that uses another component",
        ),
        pytest.param({"a": {"b", "c"}, "b": {"d"}, "c": {"d"}, "d": set[str]()}, None, id="two paths"),
    ],
)
def test_arrows_leave_out_what_others_imply(graph: dict[str, set[str]], drawn: list[tuple[str, str, str]] | None) -> None:
    every = [(node, "-->", other) for node in graph for other in sorted(graph[node])]
    assert component_map.arrows(graph) == (every if drawn is None else drawn)


def test_crates_come_before_those_they_use() -> None:
    order = component_map.crates()
    assert "wire" in component_map.crate_uses("net")
    assert all(order.index(crate) < order.index(used) for crate in order for used in component_map.crate_uses(crate))


def test_components_of_a_crate_have_their_sentence() -> None:
    found = {one.name: one for one in component_map.crate_components("wire")}
    assert found["frame"].does.endswith(".")
    assert "ids" in found["frame"].uses


def test_sentence_ends_at_its_stop() -> None:
    assert component_map.sentence("Version 1.2 of a | b\nis here. The rest.\n\nMore.") == "Version 1.2 of a \\| b is here."
