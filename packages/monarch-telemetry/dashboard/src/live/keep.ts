/** Rows of hosts that stopped to answer stay, with the time of their last answer. */

import type { Silent } from "./freshness";

export interface Kept<R> {
  row: R;
  /** Local milliseconds at which the row came. */
  at: number;
  /** Null while the host answers. */
  silent: Silent | null;
}

/** The new rows, and the former rows of hosts that are silent now; in the order of the host's name. */
export function merge<R>(
  before: readonly Kept<R>[],
  rows: readonly R[],
  silent: readonly Silent[],
  host: (row: R) => string,
  now: number,
): Kept<R>[] {
  const missing = new Map(silent.map((entry) => [entry.host, entry]));
  const fresh = rows.map((row) => ({ row, at: now, silent: missing.get(host(row)) ?? null }));
  const present = new Set(rows.map(host));
  const old = before.flatMap((kept) => {
    const entry = missing.get(host(kept.row));
    return entry === undefined || present.has(host(kept.row)) ? [] : [{ ...kept, silent: entry }];
  });
  return [...fresh, ...old].sort((a, b) => (host(a.row) < host(b.row) ? -1 : 1));
}
