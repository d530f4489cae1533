"""Texts of calls that are refused."""

import pytest

from monarch.tensor._controller import checks
from monarch.tensor._controller.checks import refusal


class Operand:
    dtype = "torch.float32"
    shape = (2, 3)

    def __init__(self, problem=None, **words):
        self.wrong = (problem, words) if problem else None


def text(*args, **kwargs):
    return str(refusal("aten.add.Tensor", args, kwargs, lambda v: getattr(v, "wrong", None)))


def test_refused_call_marks_each_operand_with_its_remedy():
    local = Operand(checks.LOCAL_TENSOR)
    lines = text([Operand(), local, local], Operand(checks.DROPPED, of="line 3"), alpha=2).splitlines()
    assert lines[0] == "aten.add.Tensor([float32[2, 3], LOCAL_TENSOR, LOCAL_TENSOR], DROPPED, alpha=2)"
    assert [line.split(":")[0] for line in lines[1:]] == ["LOCAL_TENSOR", "DROPPED"]
    assert "dropped at line 3" in lines[2]


@pytest.mark.parametrize("marker", sorted(checks.REMEDIES))
def test_each_marker_has_a_remedy(marker):
    wrong = Operand(marker, of="mesh A", here="mesh B")
    call, remedy = text(wrong).splitlines()
    assert call == f"aten.add.Tensor({marker})"
    assert remedy.startswith(f"{marker}: ") and "{" not in remedy


def test_long_values_are_cut():
    assert text("x" * 200).splitlines()[0].endswith("...)")


def test_tuples_and_mappings_are_shown_as_such():
    assert text((1,), {"a": [1, (2, 3)]}) == "aten.add.Tensor((1,), {'a': [1, (2, 3)]})"
