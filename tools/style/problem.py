"""One finding of a style check."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple


class Problem(NamedTuple):
    """A rule that a line of a file breaks; line 0 is the file as a whole."""

    path: Path
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        where = f"{self.path}:{self.line}" if self.line else str(self.path)
        return f"{where}: {self.rule}: {self.text}"


Check = Callable[[Path, str], Iterator[Problem]]


def is_test(path: Path) -> bool:
    """Whether the file holds tests: by its folder or by its name."""
    stem = path.stem
    return (
        bool({"tests", "benches", "fuzz"} & set(path.parts[:-1]))
        or stem in ("conftest", "tests")
        or stem.startswith("test_")
        or stem.endswith(("_test", "_tests"))
    )
