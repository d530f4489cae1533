"""The table of sizes counts code alone, and a small change does not make it stale."""

from __future__ import annotations

from tools import generate_docs, sizes

PYTHON = '''"""A module."""

# a comment
from x import (  # and another
    a,
)


class B:
    """Of two
    lines."""

    text = """not a docstring

    of three lines"""

    def c(self):
        """One line."""
        return "#"  # a comment
'''

RUST = """//! A crate.
/* a block
   of two lines */
use a::b; // why

/// Of the function.
fn c() -> &'static str {
    "// of a string
     { that goes on"
}

#[cfg(test)]
mod tests {
    fn t() {}
}
"""


def test_lines_of_python_have_code():
    assert sizes.python_lines(PYTHON) == 9


def test_lines_of_rust_have_code():
    assert sizes.rust_lines(RUST) == 5


def _table(*rows: str) -> str:
    return "\n".join(["| part | language | files | lines of code |", "|---|---|---|---|", *rows]) + "\n"


def test_table_is_stale_when_a_row_is_off():
    old = _table("| `a` | Python | 2 | 1,000 |", "| `b` | Rust | 1 | 20 |")
    assert sizes.is_current(old, _table("| `a` | Python | 9 | 1,100 |", "| `b` | Rust | 1 | 60 |"))
    assert not sizes.is_current(old, _table("| `a` | Python | 2 | 1,200 |", "| `b` | Rust | 1 | 20 |"))
    assert not sizes.is_current(old, _table("| `a` | Python | 2 | 1,000 |"))
    assert not sizes.is_current("", old)


def test_every_wheel_and_crate_has_rows():
    assert {"monarch._core.call", "monarch.actor", "monarch.job._job", "monarch.rdma.verbs", "wire", "bridge"} <= sizes.parts()


def test_only_the_region_is_generated():
    region = generate_docs.Region("page.md", "<!-- first -->", "<!-- last -->", lambda: "new\n")
    before, inner, after = region.split("a\n<!-- first -->\nold\n<!-- last -->\nb\n")
    assert (before, inner, after) == ("a\n<!-- first -->\n", "old\n", "<!-- last -->\nb\n")
