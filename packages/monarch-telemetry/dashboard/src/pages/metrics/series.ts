/** Rows of the statements as series of a chart. */

import type { Series } from "../../parts/Chart";

export interface Drawn {
  times: number[];
  series: Series[];
  /** Series that were left out. */
  more: number;
}

export interface GaugeRow {
  t: number;
  series: string;
  value: number | null;
}

export interface SumRow {
  t: number;
  series: string;
  temporality: string;
  is_monotonic: boolean;
  start_us: number;
  total: number | null;
  top: number | null;
}

export interface HistogramRow {
  timestamp_us: number;
  series: string;
  temporality: string;
  start_us: number;
  count: number;
  total: number | null;
  bounds_json: string;
  bucket_counts_json: string;
}

const MOST_SERIES = 24;

/** Series by name; a bucket without a point is a gap. Those with the largest last values are kept. */
export function pivot(rows: readonly GaugeRow[], step: number): Drawn {
  if (rows.length === 0) return { times: [], series: [], more: 0 };
  const first = rows.reduce((least, row) => Math.min(least, row.t), Number.POSITIVE_INFINITY);
  const last = rows.reduce((most, row) => Math.max(most, row.t), 0);
  const times = Array.from({ length: Math.round((last - first) / step) + 1 }, (_, index) => first + index * step);
  const bySeries = new Map<string, (number | null)[]>();
  for (const row of rows) {
    let values = bySeries.get(row.series);
    if (values === undefined) bySeries.set(row.series, (values = times.map(() => null)));
    values[Math.round((row.t - first) / step)] = row.value;
  }
  const end = (values: readonly (number | null)[]) => values.reduce<number>((found, value) => value ?? found, 0);
  const all = [...bySeries].map(([label, values]) => ({ label: readable(label), values })).sort((a, b) => end(b.values) - end(a.values));
  return { times, series: all.slice(0, MOST_SERIES), more: Math.max(0, all.length - MOST_SERIES) };
}

/** Attributes as `host.name=a monarch.rank=1`; other text as it is. */
export function readable(label: string): string {
  const text = label.replaceAll("{}", "").trim();
  if (!text.startsWith("{")) return text === "" ? "all" : text;
  try {
    const objects = text.split(/(?<=\})\s+(?=\{)/).map((part) => JSON.parse(part) as Record<string, unknown>);
    return objects.flatMap((object) => Object.entries(object).map(([name, value]) => `${name}=${String(value)}`)).join(" ");
  } catch {
    return text;
  }
}

/** Per second for what only grows, else the values; added up over the series unless each one is wanted. */
export function rates(rows: readonly SumRow[], step: number, each: boolean): GaugeRow[] {
  const seconds = step / 1e6;
  const before = new Map<string, SumRow>();
  const values: GaugeRow[] = [];
  for (const row of [...rows].sort((a, b) => a.t - b.t)) {
    const last = before.get(row.series);
    before.set(row.series, row);
    if (row.temporality === "delta") values.push({ t: row.t, series: row.series, value: (row.total ?? 0) / seconds });
    else if (!row.is_monotonic) values.push({ t: row.t, series: row.series, value: row.top });
    else if (last !== undefined) {
      // A restarted process counts from 0 again.
      const reset = row.start_us !== last.start_us || (row.top ?? 0) < (last.top ?? 0);
      const grown = (row.top ?? 0) - (reset ? 0 : (last.top ?? 0));
      values.push({ t: row.t, series: row.series, value: grown / ((row.t - last.t) / 1e6) });
    }
  }
  return each ? values : total(values);
}

function total(values: readonly GaugeRow[]): GaugeRow[] {
  const sums = new Map<number, number>();
  for (const { t, value } of values) sums.set(t, (sums.get(t) ?? 0) + (value ?? 0));
  return [...sums].map(([t, value]) => ({ t, series: "", value }));
}

export interface Buckets {
  bounds: number[];
  counts: number[];
}

/** The value below which the part `q` of the measurements lies, linear within a bucket; null without measurements. */
export function quantile({ bounds, counts }: Buckets, q: number): number | null {
  const all = counts.reduce((sum, count) => sum + count, 0);
  if (all === 0) return null;
  let [below, wanted] = [0, q * all];
  for (const [index, count] of counts.entries()) {
    if (count > 0 && below + count >= wanted) {
      const low = index === 0 ? Math.min(0, bounds[0] ?? 0) : bounds[index - 1]!;
      // The last bucket has no upper bound.
      const high = bounds[index] ?? low;
      return low + (high - low) * ((wanted - below) / count);
    }
    below += count;
  }
  return bounds.at(-1) ?? null;
}

/** Quantiles by bucket of time, of the measurements that were made in it. */
export function quantiles(rows: readonly HistogramRow[], step: number, qs: readonly number[]): GaugeRow[] {
  const merged = new Map<number, Map<string, Buckets>>();
  const before = new Map<string, { start_us: number; counts: number[] }>();
  for (const row of rows) {
    const bounds = JSON.parse(row.bounds_json) as number[];
    let counts = JSON.parse(row.bucket_counts_json) as number[];
    if (row.temporality !== "delta") {
      const last = before.get(row.series);
      before.set(row.series, { start_us: row.start_us, counts });
      if (last === undefined) continue;
      const reset = last.start_us !== row.start_us || last.counts.length !== counts.length;
      if (!reset) counts = counts.map((count, index) => Math.max(0, count - last.counts[index]!));
    }
    const t = Math.floor(row.timestamp_us / step) * step;
    const byBounds = merged.get(t) ?? new Map<string, Buckets>();
    merged.set(t, byBounds);
    const sum = byBounds.get(row.bounds_json);
    if (sum === undefined) byBounds.set(row.bounds_json, { bounds, counts: [...counts] });
    else counts.forEach((count, index) => (sum.counts[index] = (sum.counts[index] ?? 0) + count));
  }
  const found: GaugeRow[] = [];
  for (const [t, byBounds] of merged) {
    // Histograms with other bounds cannot be added up; the one with most measurements stands for the time.
    const size = (buckets: Buckets) => buckets.counts.reduce((sum, count) => sum + count, 0);
    const largest = [...byBounds.values()].sort((a, b) => size(b) - size(a))[0]!;
    for (const q of qs) found.push({ t, series: `p${q * 100}`, value: quantile(largest, q) });
  }
  return found;
}
