"""A number of bytes, as people write it."""

from __future__ import annotations

import re

_UNITS = {"": 1, "b": 1} | {
    name: base**power
    for power, prefix in enumerate("kmgt", 1)
    for base, names in ((1024, (prefix, f"{prefix}ib")), (1000, (f"{prefix}b",)))
    for name in names
}
_FORM = re.compile(r"([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*([a-z]*)")
LARGEST = 1 << 62


def parse(text: str) -> int:
    """`4096`, `4KiB`, `4k` (the same), `1.5GiB`, `64MB` (decimal); `ValueError` for anything else, and for none or more than 2**62."""
    found = _FORM.fullmatch(text.strip().lower())
    unit = _UNITS.get(found[2]) if found else None
    if found is None or unit is None:
        raise ValueError(f"'{text}' is no number of bytes: write 4096, 4KiB, 64MiB or 1.5GiB")
    whole, _, fraction = found[1].partition(".")
    digits = int(whole + fraction) * unit
    nbytes, rest = divmod(digits, 10 ** len(fraction))
    if rest:
        raise ValueError(f"'{text}' is {digits / 10 ** len(fraction):,} bytes: not a whole number")
    if not 0 < nbytes <= LARGEST:
        raise ValueError(f"'{text}': expected 1 byte at least" + (", and no more than 4 EiB" if nbytes else ""))
    return nbytes


def show(nbytes: int) -> str:
    """In the largest unit that leaves no fraction."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if nbytes >= 1 << power and nbytes % (1 << power) == 0:
            return f"{nbytes >> power:,} {unit}"
    return f"{nbytes:,} B"
