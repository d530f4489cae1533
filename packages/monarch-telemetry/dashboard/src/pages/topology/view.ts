/** The part of the graph that is shown. */

export interface View {
  x: number;
  y: number;
  width: number;
  height: number;
}

/** A small graph is not drawn larger than this. */
const NEAREST = 1000;

/** All of it, with the proportions of the place where it is drawn. */
export function whole(width: number, height: number, proportion: number): View {
  const fitting = Math.max(width, height * proportion, NEAREST);
  const view = { width: fitting, height: fitting / proportion };
  return { ...view, x: (width - view.width) / 2, y: (height - view.height) / 2 };
}

/** Larger or smaller around a point, within limits. */
export function zoom(view: View, factor: number, x: number, y: number): View {
  const width = Math.min(200_000, Math.max(120, view.width * factor));
  const scale = width / view.width;
  return { x: x - (x - view.x) * scale, y: y - (y - view.y) * scale, width, height: view.height * scale };
}

export function pan(view: View, dx: number, dy: number): View {
  return { ...view, x: view.x + dx * view.width, y: view.y + dy * view.height };
}

/** What a key does to the view; null for other keys. */
export function keyed(key: string, view: View): View | null {
  const [x, y] = [view.x + view.width / 2, view.y + view.height / 2];
  if (key === "+" || key === "=") return zoom(view, 0.8, x, y);
  if (key === "-") return zoom(view, 1.25, x, y);
  const step = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, -0.1], ArrowDown: [0, 0.1] }[key];
  return step === undefined ? null : pan(view, step[0]!, step[1]!);
}
