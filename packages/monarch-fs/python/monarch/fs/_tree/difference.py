"""What changes one table into another: only the directories that differ are in it, compressed with what they were.

Both sides walk the new tree breadth first. Each directory that the walk comes to has a step: its whole subtree is one of the old tree
(`_SAME`, at whatever path, so that a renamed directory costs a few bytes); its own entries are those of an old directory and directories
below it differ (`_OWN`); or its entries are sent (`_SENT`), compressed with the old directory of that path as the dictionary. The result is
verified by its digest, so a difference cannot give another table than the one it was made of.
"""

from __future__ import annotations

from array import array
from struct import Struct

from monarch.fs._tree.folder import Folder, TableError
from monarch.fs._tree.packed import pack, unpack
from monarch.fs._tree.table import MAX_ENTRIES, Table, decode_folders, encode_folders

__all__ = ["difference", "patched"]

_MAGIC = b"MFD1"
# The digests of the old and of the new root, number of steps.
_HEAD = Struct("<32s32sI")
_SAME, _OWN, _SENT = 0, 1, 2
# A directory that is sent without an old one.
_NONE = 0xFFFFFFFF
# The most bytes of old directories that are used as the dictionary.
_BASE_BYTES = 8 << 20


def difference(old: Table, new: Table) -> bytes:
    """The bytes with which `patched` makes `new` of `old`; about 150 of them where nothing has changed."""
    places: dict[bytes, int] = {}
    for number in range(len(old.folders)):
        places.setdefault(old.subtree(number), number)
    kinds, numbers = bytearray(), array("I")
    sent: list[Folder] = []
    # The folder of the new tree, and that of the old one at the same path.
    queue: list[tuple[int, int]] = [(0, 0)]
    for number, before in queue:
        same = before if before != _NONE and old.subtree(before) == new.subtree(number) else places.get(new.subtree(number))
        if same is not None:
            kinds.append(_SAME)
            numbers.append(same)
            continue
        folder = new.folders[number]
        kept = before != _NONE and old.folders[before].digest == folder.digest
        kinds.append(_OWN if kept else _SENT)
        numbers.append(before)
        if not kept:
            sent.append(folder)
        children = {} if before == _NONE else _subfolders(old, before)
        names = (folder.name(place) for place in folder.subfolders)
        queue.extend((child, children.get(name, _NONE)) for child, name in zip(new.subfolder_numbers(number), names, strict=True))
    head = _HEAD.pack(bytes.fromhex(old.generation), bytes.fromhex(new.generation), len(kinds))
    # Numbers of neighbours are consecutive: their steps compress to almost nothing.
    steps = array("I", ((number - last) & 0xFFFFFFFF for last, number in zip([0, *numbers[:-1]], numbers, strict=True)))
    base = _base(old, kinds, numbers)
    return b"".join((_MAGIC, pack(head + bytes(kinds) + steps.tobytes()), pack(encode_folders(new.root, sent), base)))


def patched(old: Table, delta: bytes | memoryview) -> Table:
    """The new table. `TableError` if the difference was made of another old table, or is malformed; `old` stays as it is."""
    view = memoryview(delta).cast("B")
    if bytes(view[: len(_MAGIC)]) != _MAGIC:
        raise TableError("the bytes do not begin like a difference of tables")
    steps, view = unpack(view[len(_MAGIC) :])
    if len(steps) < _HEAD.size:
        raise TableError("the head of the difference is cut off")
    before, after, count = _HEAD.unpack_from(steps)
    if before.hex() != old.generation:
        raise TableError(f"the difference is one from {before.hex()[:12]}, and the table is {old.generation[:12]}")
    if len(steps) != _HEAD.size + 5 * count:
        raise TableError("the steps of the difference are cut off")
    kinds, numbers = steps[_HEAD.size : _HEAD.size + count], array("I", steps[_HEAD.size + count :])
    last = 0
    for place, step in enumerate(numbers):
        last = numbers[place] = (last + step) & 0xFFFFFFFF
        if last >= len(old.folders) and not (last == _NONE and kinds[place] == _SENT):
            raise TableError(f"the difference names directory {last} of {len(old.folders)}")
    body, rest = unpack(view, _base(old, kinds, numbers))
    if len(rest):
        raise TableError(f"{len(rest)} bytes follow the difference")
    root, sent = decode_folders(body)
    made = Table(root, _assemble(old, kinds, numbers, sent))
    if made.generation != after.hex():
        raise TableError(f"the difference gives {made.generation[:12]} in place of {after.hex()[:12]}")
    return made


def _assemble(old: Table, kinds: bytes, numbers: array[int], sent: list[Folder]) -> list[Folder]:
    folders: list[Folder] = []
    steps = iter(zip(kinds, numbers, strict=True))
    left = iter(sent)
    names = 0
    # The old folder whose subtree is reused, or None for the next step.
    queue: list[int | None] = [None]
    for taken in queue:
        kind, number = (_SAME, taken) if taken is not None else next(steps, (-1, 0))
        folder = next(left, None) if kind == _SENT else old.folders[number] if kind in (_SAME, _OWN) else None
        if folder is None:
            raise TableError("the difference has too few steps or directories")
        folders.append(folder)
        names += folder.count
        if names > MAX_ENTRIES:
            raise TableError(f"{names} names are too many")
        queue.extend(old.subfolder_numbers(number) if kind == _SAME else [None] * len(folder.subfolders))
    if next(steps, None) is not None or next(left, None) is not None:
        raise TableError("the difference has too many steps or directories")
    return folders


def _subfolders(table: Table, number: int) -> dict[bytes, int]:
    folder = table.folders[number]
    names = (folder.name(place) for place in folder.subfolders)
    return dict(zip(names, table.subfolder_numbers(number), strict=True))


def _base(old: Table, kinds: bytes | bytearray, numbers: array[int]) -> bytes:
    """What both sides have of the directories that are sent."""
    parts: list[bytes] = []
    size = 0
    for kind, number in zip(kinds, numbers, strict=True):
        if kind == _SENT and number != _NONE:
            folder = old.folders[number]
            size += len(folder.records) + len(folder.names) + len(folder.tails)
            if size > _BASE_BYTES:
                break
            parts += (folder.records, folder.names, folder.tails)
    return b"".join(parts)
