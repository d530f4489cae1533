"""A program that resolves every row of the tables of monarch-compat, and prints the rows that do not resolve as they should.

python old_paths_check.py core|tensor      rows without monarch.tensor, or those with it
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from importlib import import_module

from monarch._old_modules import gone, homes


def rows(tensor: bool) -> Iterator[tuple[str, str, str, str]]:
    for module in homes.MODULES:
        for old, (place, new) in homes.rows(module).items():
            if place.startswith("monarch.tensor") is tensor:
                if old == ".":
                    public = next(name for name in vars(import_module(place)) if not name.startswith("_") and name != "annotations")
                    yield module, public, place, public
                else:
                    yield module, old, place, new


def problem(module: str, old: str, place: str, new: str) -> str | None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DeprecationWarning)
        found = getattr(import_module(module), old)
    expected = import_module(place)
    expected = getattr(expected, new) if new else expected
    if found is not expected:
        return f"{found!r} is not {expected!r}"
    texts = [str(one.message) for one in caught]
    advice = homes.INSTEAD.get(place) or f"{place}{'.' if new else ''}{new}"
    wanted = f"{module}.{old} is an import path of torchmonarch 0.7: write {advice}"
    return None if texts == [wanted] and caught[0].filename == __file__ else f"warned {texts} in {[one.filename for one in caught]}"


def main() -> None:
    count = 0
    for row in rows(sys.argv[1] == "tensor"):
        count += 1
        try:
            wrong = problem(*row)
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
        if wrong:
            print(row, wrong)
    print(count, "rows;", len(gone.MODULES), "modules without a home")


if __name__ == "__main__":
    main()
