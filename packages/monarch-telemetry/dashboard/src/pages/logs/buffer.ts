/** Lines in the order of time, each once, at most so many. */

import type { LogRow } from "./filter";

export const MOST = 50_000;

function key(row: LogRow): string {
  return `${row.timestamp_us} ${row.seq} ${row.pid} ${row.host}`;
}

function compare(a: LogRow, b: LogRow): number {
  return a.timestamp_us - b.timestamp_us || (a.host === b.host && a.pid === b.pid ? a.seq - b.seq : 0);
}

/** The same array where nothing is new. Beyond the limit the oldest lines go, or the latest where older ones were asked for. */
export function add(rows: readonly LogRow[], more: readonly LogRow[], drop: "oldest" | "latest", most = MOST): readonly LogRow[] {
  if (more.length === 0) return rows;
  const earliest = more.reduce((least, row) => Math.min(least, row.timestamp_us), Number.POSITIVE_INFINITY);
  const known = new Set<string>();
  // Rows before the earliest new one cannot be equal to any of them.
  for (let index = rows.length - 1; index >= 0 && rows[index]!.timestamp_us >= earliest; index -= 1) known.add(key(rows[index]!));
  const fresh = more.filter((row) => !known.has(key(row)));
  if (fresh.length === 0) return rows;
  const all = [...rows, ...fresh].sort(compare);
  if (all.length <= most) return all;
  return drop === "oldest" ? all.slice(all.length - most) : all.slice(0, most);
}
