/** Sets of ranks in compressed form: `0,2-5`. */

export function compress(ranks: readonly number[]): string {
  const sorted = [...new Set(ranks)].sort((a, b) => a - b);
  const parts: string[] = [];
  for (let index = 0; index < sorted.length; ) {
    let last = index;
    while (last + 1 < sorted.length && sorted[last + 1] === sorted[last]! + 1) last += 1;
    parts.push(last === index ? `${sorted[index]}` : `${sorted[index]}-${sorted[last]}`);
    index = last + 1;
  }
  return parts.join(",");
}
