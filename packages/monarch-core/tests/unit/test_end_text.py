"""The text of an actor's end fits into a record, and has its most important lines."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from monarch._core.actor.end_text import end_text
from monarch._core.errors.failure import ExitReason, MeshFailure


def ended(detail: str | None, traceback: str | None) -> MeshFailure:
    return MeshFailure(actor="a", reason=ExitReason("raised", detail=detail), traceback=traceback)


def test_traceback_follows_the_first_line_of_the_reason() -> None:
    assert end_text(ended("ValueError: one\ntwo", "Traceback:\n  line 1\nValueError: one\ntwo")) == (
        "ValueError: one\nTraceback:\n  line 1\nValueError: one\ntwo"
    )
    assert end_text(ended("stopped by its owner", None)) == "stopped by its owner" and end_text(ended(None, None)) == ""


def test_long_traceback_keeps_its_last_lines() -> None:
    text = end_text(ended("E: x", "\n".join(f"line {n}" for n in range(10_000))))
    assert text.startswith("E: x\n...\nline ") and text.endswith("\nline 9999") and 4000 < len(text) <= 4096


@given(st.text(max_size=3000), st.text(max_size=9000))
def test_each_end_fits(detail: str, traceback: str) -> None:
    assert len(end_text(ended(detail, traceback)).encode()) <= max(4096, len(detail.encode()) if not traceback else 0)
