/** JSON whose integers may be identifiers of 64 bits: integers that a number cannot hold become strings of their digits. */

type Reviver = (this: unknown, key: string, value: unknown, context?: { source?: string }) => unknown;

const LONG = /\d{16}/;
const INTEGER = /^-?\d+$/;

export function parse(text: string): unknown {
  // The reviver runs for each value and is slow, so it is used only where a long number is in sight.
  if (!LONG.test(text)) return JSON.parse(text);
  const revive: Reviver = (_key, value, context) => {
    if (typeof value !== "number" || Number.isSafeInteger(value)) return value;
    const source = context?.source;
    return source !== undefined && INTEGER.test(source) ? source : value;
  };
  return (JSON.parse as (text: string, reviver: Reviver) => unknown)(text, revive);
}
