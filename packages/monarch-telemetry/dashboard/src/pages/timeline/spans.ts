/** Spans as tracks of a drawing. */

import { integer, literal, where } from "../../api/sql";
import type { Range } from "../../parts/Range";

export interface SpanRow {
  process_id: string;
  id: string;
  name: string;
  target: string;
  level: string;
  thread_name: string;
  start_us: number;
  /** Null while the span is open. */
  end_us: number | null;
  trace_id: string | null;
}

export interface ProcessRow {
  process_id: string;
  host: string;
  mesh: string | null;
  rank: number;
  pid: number;
}

export const ROWS = 5000;

export function statement(range: Range, name: string | undefined, trace: string | undefined): string {
  const conditions = [
    `s.timestamp_us BETWEEN ${integer(range.from_us)} AND ${integer(range.to_us)}`,
    name ? `s.name ILIKE ${literal(`%${name.replace(/[\\%_]/g, (mark) => `\\${mark}`)}%`)}` : null,
    trace ? `c.trace_id = ${literal(trace)}` : null,
  ];
  return `SELECT CAST(s.process_id AS VARCHAR) AS process_id, CAST(s.id AS VARCHAR) AS id, s.name, s.target, s.level, s.thread_name,
min(coalesce(e.timestamp_us, s.timestamp_us)) AS start_us, max(CASE WHEN e.event_type <> 'enter' THEN e.timestamp_us END) AS end_us,
max(c.trace_id) AS trace_id
FROM spans s LEFT JOIN span_events e ON e.process_id = s.process_id AND e.id = s.id
LEFT JOIN span_context c ON c.process_id = s.process_id AND c.span_id = s.id${where(conditions)}
GROUP BY s.process_id, s.id, s.name, s.target, s.level, s.thread_name ORDER BY start_us LIMIT ${ROWS}`;
}

export const PROCESSES = `SELECT CAST(p.proc_id AS VARCHAR) AS process_id, h.name AS host, m.given_name AS mesh, CAST(p.rank AS BIGINT) AS rank, p.pid
FROM procs p JOIN hosts h ON p.host_id = h.host_id LEFT JOIN meshes m ON p.mesh_id = m.id LIMIT 10000`;

export interface Placed {
  span: SpanRow;
  /** The line within its track. */
  lane: number;
}

export interface Track {
  label: string;
  process_id: string;
  thread: string;
  spans: Placed[];
  lanes: number;
}

/** A track for each thread of each process; spans that overlap are in different lanes, inner ones below outer ones. */
export function tracks(spans: readonly SpanRow[], processes: ReadonlyMap<string, string>, open_end: number): Track[] {
  const byThread = new Map<string, SpanRow[]>();
  for (const span of spans) {
    const key = `${span.process_id}\n${span.thread_name}`;
    const list = byThread.get(key);
    if (list === undefined) byThread.set(key, [span]);
    else list.push(span);
  }
  const found = [...byThread.values()].map((list): Track => {
    const { process_id, thread_name } = list[0]!;
    const ends: number[] = [];
    const placed = [...list]
      .sort((a, b) => a.start_us - b.start_us || (b.end_us ?? open_end) - (a.end_us ?? open_end))
      .map((span) => {
        let lane = ends.findIndex((end) => end <= span.start_us);
        if (lane === -1) lane = ends.length;
        ends[lane] = span.end_us ?? open_end;
        return { span, lane };
      });
    return { label: processes.get(process_id) ?? `process ${process_id}`, process_id, thread: thread_name, spans: placed, lanes: ends.length };
  });
  return found.sort((a, b) => (a.label === b.label ? a.thread.localeCompare(b.thread) : a.label.localeCompare(b.label, undefined, { numeric: true })));
}

export function processName(row: ProcessRow): string {
  return `${row.mesh ?? "process"}[${row.rank}] on ${row.host}`;
}
