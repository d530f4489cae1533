/** What the metrics page asks: points by buckets of time, made on the hosts. */

import { integer, literal } from "../../api/sql";
import type { Range } from "../../parts/Range";

export type Kind = "resource" | "gauge" | "sum" | "histogram";
export type Split = "all" | "each";

export interface MetricName {
  kind: Kind;
  name: string;
  unit: string;
}

/** Columns of the table `resources`; those of GPUs have rows of their own. */
export const RESOURCES: readonly MetricName[] = [
  { kind: "resource", name: "cpu_pct", unit: "%" },
  { kind: "resource", name: "rss_bytes", unit: "By" },
  { kind: "resource", name: "threads", unit: "" },
  { kind: "resource", name: "fds", unit: "" },
  { kind: "resource", name: "gpu_util_pct", unit: "%" },
  { kind: "resource", name: "gpu_memory_bytes", unit: "By" },
];

const ROWS = 50_000;
/** Rows of histograms carry their buckets as text. */
const HISTOGRAM_ROWS = 20_000;
const POINTS = 150;
const STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600];

export function names(kind: "gauge" | "sum" | "histogram"): string {
  return `SELECT name, unit, count(*) AS points FROM metric_${kind}s GROUP BY name, unit ORDER BY name LIMIT 2000`;
}

/** Microseconds of a bucket: at most about 150 points. */
export function bucket(range: Range): number {
  const wanted = (range.to_us - range.from_us) / 1e6 / POINTS;
  return (STEPS_S.find((step) => step >= wanted) ?? Math.ceil(wanted)) * 1e6;
}

function time(step: number): string {
  return `(timestamp_us / ${integer(step)}) * ${integer(step)}`;
}

function between(range: Range): string {
  return `timestamp_us BETWEEN ${integer(range.from_us)} AND ${integer(range.to_us)}`;
}

function value(prefix: string): string {
  return `coalesce(${prefix}_f64, CAST(${prefix}_i64 AS DOUBLE), CAST(${prefix}_u64 AS DOUBLE))`;
}

const SERIES = "concat(resource_attributes_json, ' ', attributes_json)";

export function points({ kind, name }: MetricName, range: Range, split: Split): string {
  const step = bucket(range);
  const t = time(step);
  if (kind === "resource") return resource(name, range, split, t);
  const where = `WHERE name = ${literal(name)} AND ${between(range)}`;
  if (kind === "gauge") {
    const series = split === "all" ? "''" : SERIES;
    return `SELECT ${t} AS t, ${series} AS series, avg(${value("value")}) AS value FROM metric_gauges ${where} GROUP BY t, series ORDER BY t LIMIT ${ROWS}`;
  }
  if (kind === "sum") {
    return `SELECT ${t} AS t, ${SERIES} AS series, temporality, is_monotonic, max(start_timestamp_us) AS start_us, sum(${value("sum")}) AS total,
max(${value("sum")}) AS top FROM metric_sums ${where} GROUP BY t, series, temporality, is_monotonic ORDER BY t LIMIT ${ROWS}`;
  }
  return `SELECT timestamp_us, ${SERIES} AS series, temporality, start_timestamp_us AS start_us, count, ${value("sum")} AS total, bounds_json,
bucket_counts_json FROM metric_histograms ${where} ORDER BY timestamp_us LIMIT ${HISTOGRAM_ROWS}`;
}

function resource(name: string, range: Range, split: Split, t: string): string {
  const known = RESOURCES.find((metric) => metric.name === name);
  if (known === undefined) throw new RangeError(`'${name}' is no column of resources`);
  const gpu = name.startsWith("gpu_");
  const each = gpu ? "concat(host, ' gpu ', CAST(gpu AS VARCHAR))" : "host";
  const series = split === "all" ? "''" : each;
  const condition = gpu ? "gpu IS NOT NULL" : "proc IS NULL AND gpu IS NULL";
  return `SELECT ${t} AS t, ${series} AS series, avg(${name}) AS value FROM resources WHERE ${condition} AND ${between(range)}
GROUP BY t, series ORDER BY t LIMIT ${ROWS}`;
}

/** Spans that took longest in the time: examples of what the metric counts. */
export function slowest(range: Range): string {
  return `SELECT s.name, CAST(s.process_id AS VARCHAR) AS process_id, CAST(s.id AS VARCHAR) AS id, min(e.timestamp_us) AS start_us,
max(e.timestamp_us) - min(e.timestamp_us) AS took_us FROM spans s JOIN span_events e ON e.process_id = s.process_id AND e.id = s.id
WHERE s.timestamp_us BETWEEN ${integer(range.from_us)} AND ${integer(range.to_us)}
GROUP BY s.name, s.process_id, s.id ORDER BY took_us DESC LIMIT 20`;
}
