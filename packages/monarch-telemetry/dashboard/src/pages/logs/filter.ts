/** The filter of the log page, as statements. */

import { containing, integer, literal, where } from "../../api/sql";
import type { Query } from "../../router";

export interface LogRow {
  timestamp_us: number;
  seq: number;
  host: string;
  proc: string;
  pid: number;
  mesh_name: string | null;
  rank: number | null;
  stream: string;
  level: string | null;
  logger: string | null;
  line: string;
  trace_id: string | null;
}

/** Levels from the least severe, with the names that Python and the runtime use. */
const LEVELS: readonly [string, readonly string[]][] = [
  ["debug", ["debug"]],
  ["info", ["info"]],
  ["warning", ["warning", "warn"]],
  ["error", ["error"]],
  ["critical", ["critical", "fatal"]],
];
export const LEVEL_NAMES = LEVELS.map(([name]) => name);
export const STREAMS = ["stdout", "stderr", "logging", "system"];

export const PAGE_ROWS = 1000;
/** Hosts' collectors and clocks differ by less; a line that comes later than this is not seen until the page is loaded again. */
export const OVERLAP_US = 5_000_000;

const COLUMNS =
  "timestamp_us, seq, host, proc, pid, mesh_name, CAST(rank AS BIGINT) AS rank, stream, level, logger, line, trace_id";

/** Ranks such as `0,2-5`, as a condition; throws `RangeError` for other text. */
export function rankCondition(text: string): string {
  const parts = text.split(",").map((part) => {
    const match = /^\s*(\d{1,15})(?:\s*-\s*(\d{1,15}))?\s*$/.exec(part);
    if (match === null) throw new RangeError(`'${part.trim()}' is no rank: ranks are written as 0,2-5`);
    return match[2] === undefined ? `rank = ${match[1]}` : `rank BETWEEN ${match[1]} AND ${match[2]}`;
  });
  return `(${parts.join(" OR ")})`;
}

/** Throws `RangeError` where the ranks are malformed. */
export function conditions(query: Query): (string | null)[] {
  const { mesh, rank, level, stream, text, host } = query;
  const from = LEVELS.findIndex(([name]) => name === level);
  const names = from === -1 ? [] : LEVELS.slice(from).flatMap(([, all]) => all);
  return [
    mesh ? `mesh_name = ${literal(mesh)}` : null,
    rank ? rankCondition(rank) : null,
    host ? `host = ${literal(host)}` : null,
    names.length > 0 ? `lower(level) IN (${names.map(literal).join(", ")})` : null,
    stream ? `stream = ${literal(stream)}` : null,
    text ? `line ILIKE ${containing(text)}` : null,
  ];
}

/** The last rows, or those up to a time. */
export function older(query: Query, until_us: number | null): string {
  const until = until_us === null ? null : `timestamp_us <= ${integer(until_us)}`;
  return `SELECT ${COLUMNS} FROM logs${where([...conditions(query), until])} ORDER BY timestamp_us DESC, seq DESC LIMIT ${PAGE_ROWS}`;
}

/** The rows since a time. */
export function newer(query: Query, since_us: number): string {
  const since = `timestamp_us >= ${integer(since_us)}`;
  return `SELECT ${COLUMNS} FROM logs${where([...conditions(query), since])} ORDER BY timestamp_us, seq LIMIT ${PAGE_ROWS * 5}`;
}
