"""Compiles Python modules for `bytecode.py`: a process of its own, which ends with its standard input.

A request is the lengths of name and source (4 bytes each), then both; an answer is a length and an unchecked-hash `.pyc` (PEP 552), or a
zero for what is no module. Nothing of monarch is imported, so that the process starts in milliseconds.
"""

from __future__ import annotations

import marshal
import os
import sys
import warnings
from importlib.util import MAGIC_NUMBER, source_hash
from struct import Struct

REQUEST = Struct("<II")
ANSWER = Struct("<I")
_UNCHECKED_HASH = 1


def compiled(source: bytes, name: str) -> bytes:
    """The `.pyc` of a source; empty if it is no Python, or too deep to be compiled."""
    try:
        code = compile(source, name, "exec", dont_inherit=True, optimize=0)
        return MAGIC_NUMBER + _UNCHECKED_HASH.to_bytes(4, "little") + source_hash(source) + marshal.dumps(code)
    # An error of the compiler for a source is not an error of this process.
    except (Exception, RecursionError):
        return b""


def main() -> None:
    warnings.simplefilter("ignore")
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    while len(head := requests.read(REQUEST.size)) == REQUEST.size:
        name_bytes, source_bytes = REQUEST.unpack(head)
        name, source = requests.read(name_bytes), requests.read(source_bytes)
        made = compiled(source, os.fsdecode(name))
        answers.write(ANSWER.pack(len(made)) + made)
        answers.flush()


if __name__ == "__main__":
    main()
