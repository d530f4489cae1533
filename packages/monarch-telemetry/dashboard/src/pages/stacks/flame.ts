/** Merged stacks as a flame graph. */

import type { Places, StackEntry } from "../../api/types";

export interface Frame {
  key: string;
  name: string;
  place: string;
  /** Threads in it. */
  threads: number;
  depth: number;
  /** Parts of the whole width, from 0 to 1. */
  x: number;
  width: number;
  parent: number;
}

interface Branch {
  name: string;
  place: string;
  threads: number;
  below: Map<string, Branch>;
}

/** Narrower frames would be invisible, and there may be very many. */
const NARROWEST = 0.0005;

/** Frames from the outermost call down, the widest first; the frame at the front is the whole. */
export function flame(entries: readonly StackEntry[]): Frame[] {
  const root: Branch = { name: "all threads", place: "", threads: 0, below: new Map() };
  for (const entry of entries) {
    root.threads += entry.threads;
    let branch = root;
    for (let index = entry.frames.length - 1; index >= 0; index -= 1) {
      const { name, filename } = entry.frames[index]!;
      // Lines differ between threads in one function; the function is the frame.
      const key = `${name}\n${filename}`;
      let next = branch.below.get(key);
      if (next === undefined) branch.below.set(key, (next = { name, place: filename, threads: 0, below: new Map() }));
      next.threads += entry.threads;
      branch = next;
    }
  }
  const frames: Frame[] = [];
  function add(branch: Branch, depth: number, x: number, parent: number, key: string): void {
    const width = root.threads === 0 ? 0 : branch.threads / root.threads;
    if (width < NARROWEST) return;
    const index = frames.push({ key, name: branch.name, place: branch.place, threads: branch.threads, depth, x, width, parent }) - 1;
    let left = x;
    for (const [name, below] of [...branch.below].sort((a, b) => b[1].threads - a[1].threads || (a[0] < b[0] ? -1 : 1))) {
      add(below, depth + 1, left, index, `${key}\n${name}`);
      left += below.threads / root.threads;
    }
  }
  if (root.threads > 0) add(root, 0, 0, -1, "");
  return frames;
}

/** The frames around and below one of them, widened to the whole. */
export function focus(frames: readonly Frame[], key: string): Frame[] {
  const index = frames.findIndex((frame) => frame.key === key);
  const chosen = frames[index];
  if (chosen === undefined || index === 0) return [...frames];
  const around = new Set<number>();
  for (let at = chosen.parent; at >= 0; at = frames[at]!.parent) around.add(at);
  return frames.flatMap((frame, number) => {
    if (around.has(number)) return [{ ...frame, x: 0, width: 1 }];
    const inside = frame.key === chosen.key || frame.key.startsWith(`${chosen.key}\n`);
    return inside ? [{ ...frame, x: (frame.x - chosen.x) / chosen.width, width: frame.width / chosen.width }] : [];
  });
}

/** `workers[0,2-5], trainers[0-7]`. */
export function placesText(places: readonly Places[]): string {
  return places.map(({ path, mesh, ranks }) => `${mesh ?? path}${ranks === "" ? "" : `[${ranks}]`}`).join(", ");
}
