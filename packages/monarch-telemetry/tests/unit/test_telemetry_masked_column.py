"""Columns without secrets: each value is masked as a text is."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch.extension.masking import Masking
from monarch.telemetry._export.masked_column import masked_column

PLAIN = Masking()
PW = "hun" + "ter2-x"
WORDS = ["password", "token", "=", ": ", " ", "'", PW, "://", "@", "--api-key", "step 12", "\n", "{", "}", "environ({", "é"]


def test_columns_are_masked_by_their_different_values() -> None:
    got = masked_column(PLAIN, pa.array([f"token={PW}", None, "loss 3.25"] * 3, pa.string()))
    assert got.to_pylist() == ["token=***", None, "loss 3.25"] * 3
    assert got.type == pa.string()
    kept = pa.array(["loss 3.25", None])
    assert masked_column(PLAIN, kept) is kept
    parts = pa.chunked_array([[f"token={PW}"], [], [None, "x"]], pa.string())
    assert masked_column(PLAIN, parts).to_pylist() == ["token=***", None, "x"]
    assert masked_column(PLAIN, pa.array(['{"env": {"A": "b"}}', "{}"]), is_json=True).to_pylist() == ['{"env": {"A": "***"}}', "{}"]


def test_given_values_are_masked_in_columns() -> None:
    assert masked_column(Masking([PW]), pa.array([f"x {PW}", None])).to_pylist() == ["x ***", None]


@given(st.lists(st.sampled_from(WORDS), max_size=12).map("".join))
@settings(max_examples=200, deadline=None)
def test_column_is_masked_like_its_texts(text: str) -> None:
    assert masked_column(PLAIN, pa.array([text], pa.string())).to_pylist() == [PLAIN.text(text)]
