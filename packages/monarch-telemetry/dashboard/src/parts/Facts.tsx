/** Names and values of one thing. */

import type { Value } from "../api/types";
import { bytes, cell, count, duration, moment } from "../text/format";

/** A value by what its name states: bytes, microseconds, a time. */
export function shown(name: string, value: Value): string {
  if (typeof value !== "number") return cell(value);
  if (name.endsWith("_bytes")) return bytes(value);
  if (value > 1e14 && /(_at|_us|_since|^as_of)$/.test(name)) return moment(value);
  if (name.endsWith("_us")) return duration(value);
  if (name.endsWith("_ms")) return duration(value * 1000);
  return /(^|_)(id|pid|rank)$/.test(name) ? String(value) : count(value);
}

/** Nested objects become `outer.inner`; what is null is left out. */
export function flat(values: Record<string, Value>, prefix = ""): [string, Value][] {
  return Object.entries(values).flatMap(([name, value]): [string, Value][] => {
    if (value === null || value === undefined) return [];
    if (typeof value === "object" && !Array.isArray(value)) return flat(value, `${prefix}${name}.`);
    return [[`${prefix}${name}`, value]];
  });
}

export function Facts({ values }: { values: Record<string, Value> }) {
  return (
    <dl class="facts">
      {flat(values).map(([name, value]) => {
        const text = shown(name, value);
        return (
          <>
            <dt>{name.replaceAll("_", " ")}</dt>
            <dd>{text.length > 200 || text.includes("\n") ? <pre>{text}</pre> : text}</dd>
          </>
        );
      })}
    </dl>
  );
}
