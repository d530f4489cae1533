"""The lines of the controller's program that issue a command."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from types import CodeType, FrameType

# The number of lines of the program that a command keeps, and of frames in which they are searched: a module within modules has two or
# three frames of torch for each of its own.
KEPT = 3
DEPTH = 40
_DEPTH = range(DEPTH)
_ENOUGH = 2 * KEPT

# The packages whose frames are not the program's.
_OTHERS = ("torch", "monarch")

# Whether code is the program's, by identity, because the hash of code covers all its contents. An identity is safe while the code is kept.
_is_program: dict[int, bool] = {}
_kept: list[CodeType] = []


class Frame(NamedTuple):
    """One line of the controller's program."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f'File "{self.file}", line {self.line}, in {self.function}'


# Code and position of each kept frame, innermost first, one after the other: cheap to take, and read only after a failure.
Site = tuple["CodeType | int", ...]


def current_site() -> Site:
    """Where the program is now."""
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    known = _is_program.get
    found: list[CodeType | int] = []
    for _ in _DEPTH:
        code = frame.f_code
        program = known(id(code))
        if program is None:
            program = _look_at(frame)
        if program:
            found += (code, frame.f_lasti)
            if len(found) == _ENOUGH:
                break
        if (frame := frame.f_back) is None:
            break
    return tuple(found)


def _look_at(frame: FrameType) -> bool:
    if len(_kept) > 65_536:  # for programs that make code without end
        _is_program.clear()
        _kept.clear()
    _kept.append(frame.f_code)
    program = frame.f_globals.get("__name__", "").partition(".")[0] not in _OTHERS
    _is_program[id(frame.f_code)] = program
    return program


def frames_of(site: Site) -> tuple[Frame, ...]:
    """The lines of a site, innermost first."""
    return tuple(_frame(code, place) for code, place in zip(site[::2], site[1::2], strict=True) if not isinstance(code, int))


def _frame(code: CodeType, place: CodeType | int) -> Frame:
    line = code.co_firstlineno
    if isinstance(place, int):
        for start, end, number in code.co_lines():
            if start <= place < end and number is not None:
                line = number
    return Frame(code.co_filename, line, code.co_qualname)
