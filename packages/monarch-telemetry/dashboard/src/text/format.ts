/** Numbers, times and sizes as text. */

const SIZES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const COUNTS = ["", "k", "M", "G", "T"];

function scaled(value: number, base: number, units: readonly string[], gap: string): string {
  let [rest, step] = [Math.abs(value), 0];
  // 999.95 would be shown as 1000.0 of its unit.
  while (step < units.length - 1 && rest >= base * 0.99995) [rest, step] = [rest / base, step + 1];
  const digits = step === 0 || rest >= 100 ? 0 : 1;
  const unit = units[step] ?? "";
  return `${value < 0 ? "-" : ""}${rest.toFixed(digits)}${unit === "" ? "" : gap + unit}`;
}

export function bytes(value: number | null | undefined): string {
  return value == null ? "" : scaled(value, 1024, SIZES, " ");
}

/** At most four digits: `12.3k`. */
export function short(value: number | null | undefined): string {
  if (value == null) return "";
  if (!Number.isInteger(value) && Math.abs(value) < 1000) return String(Number(value.toPrecision(3)));
  return scaled(value, 1000, COUNTS, "");
}

export function count(value: number | null | undefined): string {
  return value == null ? "" : value.toLocaleString("en-US");
}

/** A length of time in microseconds: `850 us`, `12.5 ms`, `3.2 s`, `4 min 10 s`, `2 h 5 min`, `3 d 4 h`. */
export function duration(us: number | null | undefined): string {
  if (us == null || Number.isNaN(us)) return "";
  if (us < 0) return `-${duration(-us)}`;
  if (us < 1000) return `${Math.round(us)} us`;
  if (us < 1e6) return `${Number((us / 1e3).toPrecision(3))} ms`;
  const seconds = us / 1e6;
  if (seconds < 60) return `${Number(seconds.toPrecision(3))} s`;
  const whole = Math.round(seconds);
  if (whole < 3600) return pair(Math.floor(whole / 60), "min", whole % 60, "s");
  if (whole < 86400) return pair(Math.floor(whole / 3600), "h", Math.floor((whole % 3600) / 60), "min");
  return pair(Math.floor(whole / 86400), "d", Math.floor((whole % 86400) / 3600), "h");
}

function pair(large: number, unit: string, small: number, smallUnit: string): string {
  return small === 0 ? `${large} ${unit}` : `${large} ${unit} ${small} ${smallUnit}`;
}

/** The time of day with milliseconds, in the zone of the browser. */
export function clock(us: number | null | undefined): string {
  if (us == null) return "";
  const date = new Date(us / 1000);
  const two = (value: number) => String(value).padStart(2, "0");
  const milliseconds = String(date.getMilliseconds()).padStart(3, "0");
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}.${milliseconds}`;
}

/** Date and time of day, in the zone of the browser. */
export function moment(us: number | null | undefined): string {
  if (us == null) return "";
  const date = new Date(us / 1000);
  const two = (value: number) => String(value).padStart(2, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${clock(us).slice(0, 8)}`;
}

export function percent(fraction: number): string {
  return `${Number((fraction * 100).toFixed(1))} %`;
}

/** `1 host`, `2 hosts`. */
export function plural(value: number, noun: string): string {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

/** A cell of a table. */
export function cell(value: unknown): string {
  if (value === null || value === undefined) return "";
  if (typeof value === "object") return JSON.stringify(value);
  return String(value);
}

/** Text as fields of a CSV file (RFC 4180). */
export function csv(columns: readonly string[], rows: readonly Record<string, unknown>[]): string {
  const field = (text: string) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const lines = rows.map((row) => columns.map((column) => field(cell(row[column]))).join(","));
  return [columns.map(field).join(","), ...lines].map((line) => `${line}\r\n`).join("");
}
