/** The tree as a list of the rows that are shown. */

export interface Item {
  key: string;
  label: string;
  kind: string;
  note?: string;
  status?: string | null;
  leaf: boolean;
}

export interface Shown extends Item {
  depth: number;
  open: boolean;
  parent: number;
}

/** The children of an item, or null while they are not there. */
export type Children = (item: Item) => readonly Item[] | null;

export function flatten(roots: readonly Item[], open: ReadonlySet<string>, children: Children): Shown[] {
  const shown: Shown[] = [];
  function add(items: readonly Item[], depth: number, parent: number): void {
    for (const item of items) {
      const isOpen = !item.leaf && open.has(item.key);
      const index = shown.push({ ...item, depth, open: isOpen, parent }) - 1;
      if (!isOpen) continue;
      const below = children(item);
      if (below === null) shown.push({ key: `${item.key}/…`, label: "loading", kind: "", leaf: true, depth: depth + 1, open: false, parent: index });
      else add(below, depth + 1, index);
    }
  }
  add(roots, 0, -1);
  return shown;
}

/** What a key of a tree does to the row: close or open it, or select another one. */
export function step(key: string, shown: readonly Shown[], index: number): { toggle: number } | { select: number } | null {
  const row = shown[index];
  if (row === undefined) return null;
  if (key === "ArrowRight") {
    if (row.leaf) return null;
    return row.open ? { select: Math.min(index + 1, shown.length - 1) } : { toggle: index };
  }
  if (key === "ArrowLeft") {
    if (row.open) return { toggle: index };
    return row.parent >= 0 ? { select: row.parent } : null;
  }
  return key === " " && !row.leaf ? { toggle: index } : null;
}
