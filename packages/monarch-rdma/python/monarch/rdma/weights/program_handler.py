"""The entry point `monarch-rdma.weights` of the group `monarch.program`. It loads without the extras of the wheel, such as NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monarch.extension.program import Program, ProgramHandler


def weights_of_program(program: Program) -> ProgramHandler:
    """The sources and targets of a program, for one connection. `ImportError` without NumPy, which the extra `weights` installs."""
    from monarch.rdma.weights.programs import ProgramWeights

    return ProgramWeights(program)
