/** Text of statements. */

/** A string literal. */
export function literal(value: string): string {
  return `'${value.replaceAll("'", "''")}'`;
}

/** A number as an integer literal; throws `RangeError` for what is none. */
export function integer(value: number): string {
  if (!Number.isFinite(value)) throw new RangeError(`${value} is not a number of rows or microseconds`);
  return Math.trunc(value).toFixed(0);
}

/** An identifier of 64 bits; throws `RangeError` for other text. */
export function id(value: string): string {
  if (!/^\d{1,20}$/.test(value)) throw new RangeError(`'${value}' is not an identifier`);
  return value;
}

/** A pattern of LIKE that matches the text anywhere. */
export function containing(text: string): string {
  return literal(`%${text.replace(/[\\%_]/g, (mark) => `\\${mark}`)}%`);
}

/** The conditions with WHERE; empty without any. */
export function where(conditions: readonly (string | null)[]): string {
  const present = conditions.filter((condition): condition is string => condition !== null);
  return present.length === 0 ? "" : ` WHERE ${present.join(" AND ")}`;
}
