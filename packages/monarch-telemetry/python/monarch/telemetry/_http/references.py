"""References of nodes: opaque texts that stand in URLs as they are."""

from __future__ import annotations

import base64
import binascii
import re
from typing import NamedTuple

KINDS = ("root", "host", "proc", "actor")
_TEXT = re.compile(r"(root|host|proc|actor):(0|[1-9][0-9]{0,19})")
_MOST = (1 << 64) - 1
# The most characters of a reference.
_LONGEST = 40


class Reference(NamedTuple):
    """A node: its kind, and its number in the table of that kind (0 for the root)."""

    kind: str
    id: int

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(f"{self.kind}:{self.id}".encode()).rstrip(b"=").decode()


ROOT = Reference("root", 0)


def parse(text: str) -> Reference | None:
    """The reference; None for another text. A reference has one spelling."""
    if len(text) > _LONGEST or not text.isascii():
        return None
    try:
        plain = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode("ascii")
    except (binascii.Error, ValueError):
        return None
    found = _TEXT.fullmatch(plain)
    if found is None or int(found[2]) > _MOST:
        return None
    reference = Reference(found[1], int(found[2]))
    return reference if str(reference) == text and (reference.kind != "root" or reference.id == 0) else None
