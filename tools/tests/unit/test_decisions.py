"""The table of decisions: states, links, and records whose heading and status differ."""

from __future__ import annotations

import pytest

from tools import decisions


def test_superseded_decision_links_to_the_later_one() -> None:
    old = decisions.read(
        "0001-old.md", "# 0001: Old way (superseded in part by 0002)\n\nStatus: superseded in part by [0002](0002-new.md): a part\n"
    )
    new = decisions.read("0002-new.md", "# 0002: New way\n\nStatus: accepted; replaces a part of 0001\n")
    assert decisions.rows([old, new]).splitlines()[2:] == [
        "| [0001](0001-old.md) | Old way | superseded in part by [0002](0002-new.md) |",
        "| [0002](0002-new.md) | New way | accepted |",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "# 0001: Unmarked\n\nStatus: superseded by 0002\n",
        "# 0001: Marked (superseded by 0002)\n\nStatus: accepted\n",
        "# 0001: Other state\n\nStatus: considered\n",
        "# 0002: Other number\n\nStatus: accepted\n",
        "# 0001: No status\n",
    ],
)
def test_record_with_two_states_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"docs/adr/0001-a\.md"):
        decisions.read("0001-a.md", text)


def test_records_of_the_project_have_one_state() -> None:
    assert decisions.table().count("\n") > 30
