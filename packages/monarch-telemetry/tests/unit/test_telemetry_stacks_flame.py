"""Flame graphs: what is drawn where, of what size, and that any name is text."""

from __future__ import annotations

import random
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch.telemetry._stacks.flame import Counted, flame
from monarch.telemetry.errors import TelemetryError

SVG = "{http://www.w3.org/2000/svg}"
STACKS: list[Counted] = [(("main", "step", "forward"), 6), (("main", "step"), 2), (("main", "load"), 2)]
COUNTED = st.lists(st.tuples(st.lists(st.text(max_size=8), max_size=5), st.integers(0, 9)), max_size=12)


class Drawn:
    """What is drawn of one call."""

    def __init__(self, group: ElementTree.Element) -> None:
        title, box, label = group.find(f"{SVG}title"), group.find(f"{SVG}rect"), group.find(f"{SVG}text")
        assert title is not None and box is not None
        self.title = title.text or ""
        self.x, self.y, self.width = (float(box.attrib[name]) for name in ("x", "y", "width"))
        self.label = "" if label is None else label.text


def drawn(svg: str) -> dict[str, Drawn]:
    """By name, without the counts of its title."""
    groups = ElementTree.fromstring(svg).findall(f"{SVG}g/{SVG}g")
    return {one.title.rpartition(" (")[0]: one for one in map(Drawn, groups)}


def size(svg: str) -> tuple[int, int]:
    root = ElementTree.fromstring(svg)
    return int(root.attrib["width"]), int(root.attrib["height"])


def test_flame_width_is_the_share_of_samples() -> None:
    found = drawn(flame(STACKS))
    assert {name: one.title for name, one in found.items()} == {
        "all": "all (10 samples, 100.00 %)",
        "main": "main (10 samples, 100.00 %)",
        "step": "step (8 samples, 80.00 %)",
        "load": "load (2 samples, 20.00 %)",
        "forward": "forward (6 samples, 60.00 %)",
    }
    assert found["step"].width / found["main"].width == pytest.approx(0.8, abs=1e-3)
    assert found["forward"].y < found["step"].y < found["main"].y < found["all"].y
    assert found["load"].x == found["main"].x
    assert found["forward"].label == "forward"


def test_order_of_stacks_changes_nothing() -> None:
    assert flame(STACKS[::-1]) == flame([*STACKS[1:], (("main", "step", "forward"), 4), (("main", "step", "forward"), 2)]) == flame(STACKS)


def test_picture_is_one_file_without_scripts() -> None:
    svg = flame([(("<script>alert(1)</script>", 'x" onload="y', "javascript:z"), 1)], title="<b>", unit="<i>")
    names = {one.tag.removeprefix(SVG) for one in ElementTree.fromstring(svg).iter()}
    assert names == {"svg", "title", "g", "rect", "text"}
    attributes = {name for one in ElementTree.fromstring(svg).iter() for name in one.attrib}
    assert not {name for name in attributes if name.startswith("on") or name in ("style", "href", "class")}
    assert re.findall(r"https?://[^\"]*", svg) == ["http://www.w3.org/2000/svg"]


@given(COUNTED, st.text(max_size=20))
@settings(max_examples=100, deadline=None)
def test_any_name_gives_xml(stacks: list[Counted], title: str) -> None:
    svg = flame(stacks, title=title)
    svg.encode()
    for one in map(Drawn, ElementTree.fromstring(svg).findall(f"{SVG}g/{SVG}g")):
        assert one.x >= 10
        assert one.x + one.width <= 1190.1


@given(st.lists(st.tuples(st.lists(st.sampled_from("abc"), max_size=4), st.integers(0, 9)), max_size=12))
@settings(max_examples=100, deadline=None)
def test_calls_lie_above_their_callers(stacks: list[Counted]) -> None:
    found = [Drawn(one) for one in ElementTree.fromstring(flame(stacks)).findall(f"{SVG}g/{SVG}g")]
    assert bool(found) == any(count for _, count in stacks)
    rows = {one.y: [other for other in found if other.y == one.y] for one in found}
    for one in found:
        assert one.y == max(rows) or any(b.x <= one.x + 0.02 and one.x + one.width <= b.x + b.width + 0.1 for b in rows[one.y + 17])
        assert sum(other.x < one.x + one.width and one.x < other.x + other.width for other in rows[one.y]) == 1


@pytest.mark.parametrize("stacks", [[], [((), 0)], [(("f",), 1)], [((), 3)]])
def test_smallest_pictures_have_a_size(stacks: list[Counted]) -> None:
    width, height = size(flame(stacks))
    assert width == 1200
    assert 80 < height < 150


def test_100000_stacks_are_a_picture_of_bounded_size() -> None:
    chance = random.Random(4)
    stacks = [([f"f{chance.randrange(40)}" for _ in range(5)], chance.randrange(1, 5)) for _ in range(100_000)]
    svg = flame(stacks)
    assert len(svg) < 5_000_000
    rows = {Drawn(one).y for one in ElementTree.fromstring(svg).findall(f"{SVG}g/{SVG}g")}
    assert size(svg) == (1200, 44 + 26 + 17 * len(rows))
    assert "narrow calls are not drawn" in svg


def test_deep_recursion_has_a_bounded_height() -> None:
    svg = flame([(["f"] * 10_000, 1)])
    assert size(svg)[1] < 5_000
    assert "calls above row 250 are not drawn" in svg


def test_long_names_are_shortened_to_their_width() -> None:
    name = "名" * 300 + "x" * 300
    found = drawn(flame([((name, "short"), 1)], width=400))[name]
    assert found.title.startswith(name)
    assert found.label is not None
    assert found.label.endswith("…")
    assert 20 < len(found.label) < 40


def test_wrong_counts_and_widths_are_named() -> None:
    with pytest.raises(TelemetryError, match="ends in 'f' has the count -1"):
        flame([(("f",), -1)])
    with pytest.raises(TelemetryError, match="the width 10 is not within 320 to 4000"):
        flame([], width=10)
