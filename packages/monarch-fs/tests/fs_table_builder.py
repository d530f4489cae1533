"""A table of given nodes."""

from __future__ import annotations

from collections.abc import Mapping

from monarch.fs._tree.folder import NAME_BYTES, Folder, Item, folder_of, link_group, pack_node
from monarch.fs._tree.node import Kind, Node
from monarch.fs._tree.table import Table, TableError


def build_table(nodes: Mapping[bytes, Node | bytes]) -> Table:
    """The table of nodes by their paths; `b""` is the root. `bytes` in place of a node are the path that it is a hard link of.

    `TableError` for a path whose directory is not there, and for nodes that no file can have. `nlink` is counted.
    """
    names: dict[bytes, list[bytes]] = {}
    for path, node in nodes.items():
        names.setdefault(node if isinstance(node, bytes) else path, []).append(path)
    packed: dict[bytes, tuple[bytes, bytes]] = {}
    below: dict[bytes, list[bytes]] = {}
    for path, paths in names.items():
        node = nodes.get(path)
        if not isinstance(node, Node):
            raise TableError(f"{path!r} is no node that a name can be a hard link of")
        group = link_group(sorted(paths)) if len(paths) > 1 else 0
        packed.update(dict.fromkeys(paths, pack_node(node._replace(nlink=len(paths)), group)))
    for path in nodes:
        parent, _, name = path.rpartition(b"/")
        if path:
            if not 0 < len(name) <= NAME_BYTES or parent not in packed or packed[parent][0][0] != Kind.DIRECTORY:
                raise TableError(f"{path!r} is in no directory of the tree")
            below.setdefault(parent, []).append(name)
    if b"" not in packed:
        raise TableError("the tree has no root")
    folders: list[Folder] = []
    queue = [b""]
    for parent in queue:
        prefix = parent + b"/" if parent else b""
        items = [Item(name, *packed[prefix + name]) for name in sorted(below.get(parent, []))]
        folder = folder_of(items)
        folder.check()
        folders.append(folder)
        queue.extend(prefix + items[place].name for place in folder.subfolders)
    return Table(packed[b""], folders)
