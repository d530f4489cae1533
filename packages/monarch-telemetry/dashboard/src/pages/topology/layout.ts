/** Places of the vertices: layers from left to right by the hierarchy. */

import { Graph as Dagre, layout as run } from "@dagrejs/dagre";
import type { Graph } from "./rollup";

export const WIDTH = 190;
export const HEIGHT = 40;
/** Around the graph; at the right there is room for the lines of messages. */
const MARGIN = 20;
const RIGHT = 110;

export interface Placed {
  at: Map<string, { x: number; y: number }>;
  width: number;
  height: number;
}

/** Beyond this the vertices are put into columns by tier: the layout library would take seconds. */
const MOST = 1500;
const TIERS = ["host_mesh", "host", "proc_mesh", "proc", "actor_mesh", "actor"];

export function place(graph: Graph): Placed {
  if (graph.vertices.length > MOST) return columns(graph);
  const dagre = new Dagre({ directed: true });
  dagre.setGraph({ rankdir: "LR", nodesep: 10, ranksep: 60, marginx: MARGIN, marginy: MARGIN });
  dagre.setDefaultEdgeLabel(() => ({}));
  for (const vertex of graph.vertices) dagre.setNode(vertex.id, { width: WIDTH, height: HEIGHT });
  // Messages go in all directions; the layers are those of the hierarchy.
  for (const arc of graph.arcs) if (arc.type === "hierarchy") dagre.setEdge(arc.source, arc.target);
  run(dagre);
  const at = new Map<string, { x: number; y: number }>();
  for (const vertex of graph.vertices) {
    const node = dagre.node(vertex.id) as { x: number; y: number };
    at.set(vertex.id, { x: node.x - WIDTH / 2, y: node.y - HEIGHT / 2 });
  }
  return bounds(at);
}

function columns(graph: Graph): Placed {
  const next = new Map<string, number>();
  const at = new Map<string, { x: number; y: number }>();
  for (const vertex of graph.vertices) {
    const row = next.get(vertex.tier) ?? 0;
    next.set(vertex.tier, row + 1);
    at.set(vertex.id, { x: MARGIN + Math.max(0, TIERS.indexOf(vertex.tier)) * (WIDTH + 60), y: MARGIN + row * (HEIGHT + 10) });
  }
  return bounds(at);
}

function bounds(at: Placed["at"]): Placed {
  let [width, height] = [0, 0];
  for (const { x, y } of at.values()) [width, height] = [Math.max(width, x + WIDTH + RIGHT), Math.max(height, y + HEIGHT + MARGIN)];
  return { at, width: Math.max(width, 100), height: Math.max(height, 100) };
}
