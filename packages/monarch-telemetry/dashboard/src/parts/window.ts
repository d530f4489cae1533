/** Which rows of a long list are drawn. */

export interface Window {
  first: number;
  /** Behind the last one. */
  end: number;
}

/** Rows beyond the edges, so that scrolling by a little draws nothing new. */
const OVERSCAN = 12;
/** The window moves by whole steps, so that most scroll events change nothing. */
const STEP = 8;

export function visible(scrollTop: number, height: number, rowHeight: number, rows: number): Window {
  const top = Math.floor(Math.max(0, scrollTop) / rowHeight) - OVERSCAN;
  const bottom = Math.ceil((Math.max(0, scrollTop) + height) / rowHeight) + OVERSCAN;
  const first = Math.floor(Math.max(0, top) / STEP) * STEP;
  return { first: Math.min(first, Math.max(0, rows - 1)), end: Math.min(rows, Math.ceil(bottom / STEP) * STEP) };
}

/** The row that a key selects; null for other keys. */
export function moved(key: string, selected: number, rows: number, page: number): number | null {
  if (rows === 0) return null;
  const to = { ArrowDown: selected + 1, ArrowUp: selected - 1, PageDown: selected + page, PageUp: selected - page, Home: 0, End: rows - 1 }[key];
  return to === undefined ? null : Math.min(rows - 1, Math.max(0, to));
}

/** Where to scroll so that a row is in view; null where it is. */
export function reveal(row: number, scrollTop: number, height: number, rowHeight: number): number | null {
  const top = row * rowHeight;
  if (top < scrollTop) return top;
  return top + rowHeight > scrollTop + height ? top + rowHeight - height : null;
}
