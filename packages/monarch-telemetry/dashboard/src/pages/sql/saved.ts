/** Statements that the user keeps, in the storage of the browser. */

export interface Saved {
  name: string;
  sql: string;
}

const KEY = "monarch.statements";

/** What asks for something useful before anything was saved. */
export const EXAMPLES: readonly Saved[] = [
  { name: "First causes", sql: "SELECT timestamp_us, kind, mesh_name, rank, host, endpoint, message FROM failures WHERE first_cause ORDER BY timestamp_us LIMIT 10" },
  {
    name: "Slowest endpoints",
    sql: "SELECT mesh_name, endpoint, sum(count) AS calls, sum(errors) AS errors,\n       sum(latency_sum_us) / sum(count) AS mean_us, max(latency_max_us) AS max_us\nFROM endpoint_stats WHERE side = 'server'\nGROUP BY mesh_name, endpoint ORDER BY mean_us DESC",
  },
  { name: "Errors in the logs", sql: "SELECT timestamp_us, host, mesh_name, rank, line FROM logs\nWHERE stream = 'stderr' AND line LIKE '%Error%' ORDER BY timestamp_us DESC, seq DESC LIMIT 100" },
  { name: "Growth of memory", sql: "SELECT host, proc, max(rss_bytes) - min(rss_bytes) AS growth FROM resources\nWHERE proc IS NOT NULL GROUP BY host, proc ORDER BY growth DESC LIMIT 20" },
  { name: "What telemetry keeps", sql: "SELECT table_name, sum(rows) AS rows, sum(bytes) AS bytes, sum(dropped) AS dropped\nFROM telemetry_status GROUP BY table_name ORDER BY bytes DESC" },
];

/** Entries that are malformed are left out. */
export function load(storage: Pick<Storage, "getItem">): Saved[] {
  try {
    const list: unknown = JSON.parse(storage.getItem(KEY) ?? "[]");
    if (!Array.isArray(list)) return [];
    return list.filter((entry): entry is Saved => typeof entry?.name === "string" && typeof entry?.sql === "string");
  } catch {
    return [];
  }
}

/** A statement of the same name is replaced. */
export function put(list: readonly Saved[], entry: Saved): Saved[] {
  return [...list.filter((one) => one.name !== entry.name), entry].sort((a, b) => a.name.localeCompare(b.name));
}

export function store(list: readonly Saved[], storage: Pick<Storage, "setItem">): void {
  storage.setItem(KEY, JSON.stringify(list));
}
