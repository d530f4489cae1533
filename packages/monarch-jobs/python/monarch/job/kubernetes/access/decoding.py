"""JSON of an API server, whose objects users write: nested as deep as they like, which a decoder that recurses cannot follow.

Ours: the official client decodes by `json`, and one such object hides all others of a list.
"""

from __future__ import annotations

import json
import re
from typing import Any

# The largest depth: no kind of Kubernetes itself is nested so deep; deeper parts become `CUT`.
DEEPEST = 200
CUT = "(nested too deep)"
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', re.DOTALL)


def decode(data: bytes) -> Any:
    """The value; one object that is nested too deep does not hide the others of a list."""
    try:
        return json.loads(data)
    except RecursionError:
        return json.loads(_cut(data))


def _cut(data: bytes) -> bytes:
    kept: list[bytes] = []
    depth = begin = 0
    for token in _TOKEN.finditer(data):
        if token[0] in (b"[", b"{"):
            depth += 1
            if depth == DEEPEST:
                kept += (data[begin : token.start()], json.dumps(CUT).encode())
        elif token[0] in (b"]", b"}"):
            if depth == DEEPEST:
                begin = token.end()
            depth -= 1
    return b"".join((*kept, data[begin:]))
