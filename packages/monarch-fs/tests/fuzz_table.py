"""Mutated tables and differences: `python packages/monarch-fs/tests/fuzz_table.py 1000000 [SEED]`. Exit code 1 on a crash.

Half of the inputs are mutated before the envelope is put around them, so that they reach the reader of records. The reader raises
`TableError`, or gives a table that can be walked and encoded again.
"""

from __future__ import annotations

import os
import random
import sys

from fs_table_builder import build_table

from monarch.fs._tree.difference import difference, patched
from monarch.fs._tree.node import Kind, Node
from monarch.fs._tree.packed import pack, unpack
from monarch.fs._tree.table import Table, TableError

_INTERESTING = (0, 1, 2, 4, 5, 7, 31, 32, 127, 128, 254, 255)


def _tables(chance: random.Random) -> tuple[Table, Table]:
    root = Node(Kind.DIRECTORY, 0o755, 0, 0, 0, 1, xattrs=((b"user.a", b"value"),))
    nodes: dict[bytes, Node | bytes] = {b"": root, b"d": root, b"d/e": root, b"link": Node(Kind.SYMLINK, 0o777, 0, 0, 3, 1, target=b"d/e")}
    for number in range(6):
        nodes[b"d/f%d" % number] = Node(Kind.FILE, 0o644, 0, 0, 9, number, chunks=chance.randbytes(32))
    nodes[b"large"] = Node(Kind.FILE, 0o600, 1, 1, 3 << 20, 5, chunks=chance.randbytes(96))
    nodes[b"d/e/hard"] = b"d/f1"
    changed = dict(nodes)
    changed[b"d/f3"] = Node(Kind.FILE, 0o644, 0, 0, 8, 3, chunks=chance.randbytes(32))
    changed[b"new"] = root
    return build_table(nodes), build_table(changed)


def _mutated(data: bytes, chance: random.Random) -> bytes:
    made = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 4, 8))):
        if not made:
            break
        at = chance.randrange(len(made))
        what = chance.randrange(6)
        if what == 0:
            made[at] ^= 1 << chance.randrange(8)
        elif what == 1:
            made[at] = chance.choice(_INTERESTING)
        elif what == 2:
            del made[at : at + chance.randrange(1, 60)]
        elif what == 3:
            made[at:at] = chance.randbytes(chance.randrange(1, 9))
        elif what == 4:
            start = chance.randrange(len(made))
            made[at:at] = made[start : start + chance.randrange(1, 60)]
        else:
            made[at : at + 4] = chance.choice((0, 1, 0xFFFFFFFF, 0x7FFFFFFF, len(made))).to_bytes(4, "little")
    return bytes(made)


def run(count: int, seed: int) -> tuple[int, int]:
    """How many inputs were accepted and refused; any other error than `TableError` passes through."""
    chance = random.Random(seed)
    old, new = _tables(chance)
    table, delta = new.encode(), difference(old, new)
    body = unpack(memoryview(table)[4:])[0]
    steps, rest = unpack(memoryview(delta)[4:])
    accepted = refused = 0
    for number in range(count):
        what = number % 4
        try:
            if what == 0:
                found = Table.decode(_mutated(table, chance))
            elif what == 1:
                found = Table.decode(b"MFT1" + pack(_mutated(body, chance)))
            elif what == 2:
                found = patched(old, _mutated(delta, chance))
            else:
                found = patched(old, b"MFD1" + pack(_mutated(steps, chance)) + bytes(rest))
        except TableError:
            refused += 1
            continue
        accepted += 1
        if what > 1 and found.generation != new.generation:
            raise AssertionError("a difference gave another table than it names")
        again = Table.decode(found.encode())
        if again.generation != found.generation or sum(1 for _ in found.walk()) > 1000:
            raise AssertionError("an accepted table does not survive its own encoding")
        for index in range(len(found)):
            found.node(index)
            found.digest(index)
    return accepted, refused


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else int.from_bytes(os.urandom(4), "little")
    print(f"seed {seed}", flush=True)
    accepted, refused = run(count, seed)
    print(f"{count} inputs: {accepted} accepted, {refused} refused")
