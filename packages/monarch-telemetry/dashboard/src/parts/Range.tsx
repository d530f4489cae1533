/** A part of the time: the last minutes, or from and to in microseconds. */

import { type Query, type Route, setQuery } from "../router";
import { moment } from "../text/format";

export const SPANS: readonly [string, number][] = [
  ["1 min", 60],
  ["5 min", 300],
  ["15 min", 900],
  ["1 h", 3600],
  ["6 h", 21_600],
];

export interface Range {
  from_us: number;
  to_us: number;
  /** Whether it ends now. */
  moving: boolean;
}

export function rangeOf(query: Query, now_us: number, standard = 900): Range {
  const [from, to] = [Number(query["from"] ?? Number.NaN), Number(query["to"] ?? Number.NaN)];
  if (Number.isFinite(from) && Number.isFinite(to) && from < to) return { from_us: from, to_us: to, moving: false };
  const seconds = Number(query["last"] ?? standard);
  const length = Number.isFinite(seconds) && seconds > 0 ? seconds : standard;
  return { from_us: now_us - length * 1e6, to_us: now_us, moving: true };
}

export function RangeChoice({ route, standard = 900 }: { route: Route; standard?: number }) {
  const { from, to, last } = route.query;
  const fixed = from !== undefined && to !== undefined;
  return (
    <label>
      Time{" "}
      <select
        value={fixed ? "fixed" : (last ?? String(standard))}
        onChange={(event) => {
          const { value } = event.currentTarget;
          if (value !== "fixed") setQuery(route, { last: value, from: null, to: null });
        }}
      >
        {fixed && <option value="fixed">{`${moment(Number(from))} to ${moment(Number(to)).slice(11)}`}</option>}
        {SPANS.map(([name, seconds]) => (
          <option value={String(seconds)}>last {name}</option>
        ))}
      </select>
    </label>
  );
}

export function chooseRange(route: Route, from_us: number, to_us: number): void {
  setQuery(route, { from: String(Math.floor(from_us)), to: String(Math.ceil(to_us)), last: null });
}
