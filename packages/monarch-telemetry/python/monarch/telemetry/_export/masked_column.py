"""Columns without secrets: the texts that may have one are found for a whole column at once."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from monarch.extension.masking import Masking
from monarch.telemetry._arrow import pa


def masked_column(masking: Masking, column: Any, *, is_json: bool = False) -> Any:
    """A text column (`pyarrow.Array` or `ChunkedArray` of strings) with its values masked; the same object where none was."""
    pc: Any = import_module("pyarrow.compute")
    mask = masking.json if is_json else masking.text
    different = pc.drop_null(pc.unique(column))
    suspect = pc.match_substring_regex(different, masking.suspects)
    different = pc.filter(different, pc.or_(suspect, pc.match_substring(different, '"env')) if is_json else suspect)
    before: list[str] = different.to_pylist()
    after = [mask(text) for text in before]
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    if not changed:
        return column
    olds, news = zip(*changed, strict=True)
    at = pc.index_in(column, value_set=pa.array(olds, pa.string()))
    return pc.if_else(pc.is_null(at), column, pc.take(pa.array(news, pa.string()), at))
