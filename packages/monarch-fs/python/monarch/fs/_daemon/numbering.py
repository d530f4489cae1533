"""Inode numbers of a mounted tree, and the change from one table to the next.

A mount assigns numbers in the order of the table, from `ROOT`, and never assigns a number twice. The next table inherits numbers by path:

- a directory keeps the number of the directory that has its path, whatever changes in it;
- a file or symbolic link keeps the number where content and path are equal; attributes alone may change, and are announced;
- a file of other content, a renamed file, and a name that changes its kind get a new number.

A number of several hard links belongs to one node of each table: the first path, in the order of the walk, at which both tables agree
decides. A change of the links of a node is a change of names for the others.

The comparison visits each pair of directories once. Subtrees of equal digests are paired without a comparison of nodes, because a digest
has all attributes and content; only the pairing of hard links can differ there, and a pair that cannot be kept is compared by name like
any other."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from monarch.fs._tree.node import Kind, Node
from monarch.fs._tree.operations import ROOT
from monarch.fs._tree.table import Table

# Not an inode: numbers start at `ROOT`.
NONE = 0
# Numbers that are compared in one step.
_RUN = 512


class Numbering:
    """The inode number of each node of a table, and the node of each number."""

    def __init__(self, numbers: array[int], following: int) -> None:
        """`numbers[index]` is the inode of a node; `following` the first number never assigned. `ValueError`: malformed."""
        self.numbers = numbers
        self.following = following
        if len(numbers) and not ROOT <= min(numbers) <= max(numbers) < following:
            raise ValueError(f"inodes {min(numbers)} to {max(numbers)}, of which the next is {following}")
        if len(set(numbers)) != len(numbers):
            raise ValueError("an inode belongs to two nodes")
        indices = self._indices = array("i", [-1]) * following
        for index, inode in enumerate(numbers):
            indices[inode] = index
        if not len(numbers) or numbers[0] != ROOT:
            raise ValueError("the root has another inode than 1")

    def followed_by(self, numbers: array[int], following: int, ended: Iterable[int]) -> Numbering:
        """The numbering of the next table; nodes of this table that have `ended` are not in it.

        Runs of equal numbers cost a comparison of bytes.
        """
        made = Numbering.__new__(Numbering)
        made.numbers, made.following = numbers, following
        indices = made._indices = self._indices[:]
        indices.extend(array("i", [-1]) * (following - len(indices)))
        for index in ended:
            indices[self.numbers[index]] = -1
        old, new = memoryview(self.numbers).cast("B"), memoryview(numbers).cast("B")
        for start in range(0, len(numbers), _RUN):
            end = min(start + _RUN, len(numbers))
            if old[8 * start : 8 * end] != new[8 * start : 8 * end]:
                for index, inode in enumerate(numbers[start:end], start):
                    indices[inode] = index
        return made

    @classmethod
    def first(cls, table: Table) -> Numbering:
        return cls(array("Q", range(ROOT, ROOT + len(table))), ROOT + len(table))

    def inode(self, index: int) -> int:
        return self.numbers[index]

    def index(self, inode: int) -> int:
        """The node that has this number, -1 for a number of an earlier table or of none."""
        return self._indices[inode] if 0 <= inode < self.following else -1


class Change(NamedTuple):
    """What a commit will change. The kernel drops its caches of `entries` and `inodes` between `begin` and `commit`."""

    # The generations before and after.
    base: str
    generation: str
    table: Table
    # The numbers before and after.
    basis: Numbering
    numbering: Numbering
    # Names, as (inode of the directory, name), that get another inode, disappear or are added; including those of removed directories.
    entries: list[tuple[int, bytes]]
    # Inodes that remain and have other attributes, and directories whose listing changes, including removed ones.
    inodes: list[int]
    # Inodes without a name, with their nodes.
    gone: dict[int, Node]
    # Directories whose listing gets other names or kinds with the same modification time.
    silent: frozenset[int]

    def __repr__(self) -> str:
        counts = f"{len(self.entries)} names, {len(self.inodes)} inodes, {len(self.gone)} gone"
        return f"Change({self.base[:12]} to {self.generation[:12]}: {counts})"


def change(old: Table, numbering: Numbering, new: Table) -> Change:
    """The numbers of `new`, and all that differs from `old`."""
    comparison = _Comparison(old, numbering, new)
    comparison.pair()
    comparison.number()
    return comparison.result()


def same_content(old: Node, new: Node) -> bool:
    """Whether the bytes that readers of the two nodes get are the same."""
    if old.kind != new.kind:
        return False
    if old.kind is Kind.DIRECTORY:
        return True
    if old.kind is Kind.SYMLINK:
        return old.target == new.target
    return old.size == new.size and old.chunks == new.chunks and old.readable == new.readable


class _Comparison:
    def __init__(self, old: Table, numbering: Numbering, new: Table) -> None:
        self.old, self.numbering, self.new = old, numbering, new
        self.numbers = array("Q", [NONE]) * len(new)
        # Nodes of the old table with a successor, and nodes of the new table with a number.
        self.kept, self.given = bytearray(len(old)), bytearray(len(new))
        # Pairs of directories whose names are still to be compared.
        self.differing: list[tuple[int, int]] = []
        self.altered: set[int] = set()
        self.following = numbering.following

    def pair(self) -> None:
        todo = [(0, 0)]
        self.take(0, 0)
        while todo:
            before, after = todo.pop()
            if self.old.digest(before) == self.new.digest(after):
                # Equal subtrees: names and nodes are the same one by one.
                if self.take_below(before, after):
                    continue
                kept = True
                for (_, one), (_, other) in zip(self.old.children(before), self.new.children(after), strict=True):
                    kept = self.take(one, other) and kept
                    if self.old.folder_number(one) is not None:
                        todo.append((one, other))
                if not kept:
                    self.differing.append((before, after))
                continue
            if (below := self.take_entries(before, after)) is not None:
                todo.extend(below)
                continue
            self.differing.append((before, after))
            names = dict(self.old.children(before))
            for name, other in self.new.children(after):
                one = names.get(name)
                if one is None:
                    continue
                equal = self.old.digest(one) == self.new.digest(other)
                first, second = self.old.node(one), self.new.node(other)
                if (equal or same_content(first, second)) and self.take(one, other):
                    if first.kind is Kind.DIRECTORY:
                        todo.append((one, other))
                    # The digest of a directory includes its subtree; its attributes may be the same.
                    if not equal and (first.kind is not Kind.DIRECTORY or first != second):
                        self.altered.add(self.numbers[other])
        if self.old.node(0) != self.new.node(0):
            self.altered.add(ROOT)

    def take(self, before: int, after: int) -> bool:
        """The node `after` inherits the number of `before`; false where either has another partner."""
        inode = self.numbering.inode(before)
        if self.numbers[after] == inode:
            return True
        if self.numbers[after] != NONE or self.kept[before]:
            return False
        self.numbers[after], self.kept[before], self.given[after] = inode, 1, 1
        return True

    def take_below(self, before: int, after: int) -> bool:
        """All nodes below equal directories inherit, a level at once; false where hard links forbid that, and nothing is done."""
        one, other = self.old.folder_number(before), self.new.folder_number(after)
        if one is None or other is None or self.old.has_links or self.new.has_links:
            return False
        self.take_levels(range(one, one + 1), range(other, other + 1))
        return True

    def take_levels(self, old: range, new: range) -> None:
        """As `take_below`, of folders that follow each other, and whose subtrees are equal one by one."""
        while old:
            self.take_nodes(self.old.nodes_of(old), self.new.nodes_of(new))
            old, new = self.old.folders_below(old), self.new.folders_below(new)

    def take_nodes(self, old: range, new: range) -> None:
        self.numbers[new.start : new.stop] = self.numbering.numbers[old.start : old.stop]
        self.kept[old.start : old.stop] = self.given[new.start : new.stop] = b"\1" * len(old)

    def take_entries(self, before: int, after: int) -> list[tuple[int, int]] | None:
        """Where two directories differ only below directories in them: all entries inherit. The directories in them that differ.

        None where the entries differ, or hard links forbid it, and nothing is done.
        """
        old, new = self.old, self.new
        one, other = old.folder_number(before), new.folder_number(after)
        if one is None or other is None or old.has_links or new.has_links or old.folders[one].digest != new.folders[other].digest:
            return None
        was, now = old.folders_below(range(one, one + 1)), new.folders_below(range(other, other + 1))
        self.take_nodes(old.nodes_of(range(one, one + 1)), new.nodes_of(range(other, other + 1)))
        differing = [at for at in range(len(was)) if old.subtree(was[at]) != new.subtree(now[at])]
        start = 0
        for at in (*differing, len(was)):
            self.take_levels(was[start:at], now[start:at])
            start = at + 1
        places = old.folders[one].subfolders
        first, second = old.nodes_of(range(one, one + 1)), new.nodes_of(range(other, other + 1))
        return [(first[places[at]], second[places[at]]) for at in differing]

    def number(self) -> None:
        index = self.given.find(0)
        while index >= 0:
            self.numbers[index] = self.following
            self.following += 1
            index = self.given.find(0, index + 1)

    def ended(self) -> Iterator[int]:
        """The nodes of the old table that have no successor."""
        index = self.kept.find(0)
        while index >= 0:
            yield index
            index = self.kept.find(0, index + 1)

    def result(self) -> Change:
        entries: list[tuple[int, bytes]] = []
        silent: set[int] = set()
        for before, after in self.differing:
            parent = self.numbering.inode(before)
            old, new = dict(self.old.children(before)), dict(self.new.children(after))
            changed: list[bytes] = []
            visible = False
            for name in old.keys() | new.keys():
                one, other = old.get(name), new.get(name)
                if one is not None and other is not None and self.numbering.inode(one) == self.numbers[other]:
                    continue
                changed.append(name)
                visible = visible or one is None or other is None or self.old.node(one).kind != self.new.node(other).kind
            if changed:
                entries += [(parent, name) for name in sorted(changed)]
                self.altered.add(parent)
                if visible and self.old.node(before).mtime_ns == self.new.node(after).mtime_ns:
                    silent.add(parent)
        gone = {self.numbering.inode(index): self.old.node(index) for index in self.ended()}
        # A process with a removed directory as its working directory lists it as empty, with its old time.
        removed = [inode for inode, node in gone.items() if node.kind is Kind.DIRECTORY]
        self.altered.update(removed)
        silent.update(removed)
        # Names below removed directories are first: a process with such a working directory resolves them without the names above.
        entries = [*self.vanished(), *entries]
        numbering = self.numbering.followed_by(self.numbers, self.following, self.ended())
        return Change(
            self.old.generation,
            self.new.generation,
            self.new,
            self.numbering,
            numbering,
            entries,
            sorted(self.altered),
            gone,
            frozenset(silent),
        )

    def vanished(self) -> Iterator[tuple[int, bytes]]:
        for index in self.ended():
            if self.old.folder_number(index) is not None:
                parent = self.numbering.inode(index)
                for name, _ in self.old.children(index):
                    yield parent, name
