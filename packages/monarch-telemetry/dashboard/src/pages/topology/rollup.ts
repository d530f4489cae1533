/** A graph that is small enough to read: many siblings become one node with their number and statuses. */

import type { DagEdge, DagNode } from "../../api/types";
import { plural } from "../../text/format";

export interface Vertex {
  id: string;
  label: string;
  subtitle: string;
  tier: string;
  status: string | null;
  /** Of what the vertex shows: the entity, or null for a group. */
  entity: { tier: DagNode["tier"]; id: string } | null;
  /** Nodes that are rolled up, without those below them. */
  members: number;
}

export interface Arc {
  source: string;
  target: string;
  type: "hierarchy" | "message";
  count: number;
}

export interface Graph {
  vertices: Vertex[];
  arcs: Arc[];
}

/** The severest first: a group has the status of its worst member. */
const SEVERITY = ["failed", "stopping", "stopped", "initializing", "created", "processing", "client", "idle"];

function severity(status: string | null): number {
  const index = SEVERITY.indexOf((status ?? "").toLowerCase());
  return index === -1 ? SEVERITY.length : index;
}

const ROOT = "";

/** Siblings of one tier beyond `limit` become one group with all that is below them; `expanded` groups are cut into at most `limit` parts. */
export function rollUp(nodes: readonly DagNode[], edges: readonly DagEdge[], limit: number, expanded: ReadonlySet<string>): Graph {
  const byId = new Map(nodes.map((node) => [node.id, node]));
  const below = children(nodes, edges, byId);
  const home = new Map<string, string>();
  const vertices: Vertex[] = [];

  function show(node: DagNode): void {
    home.set(node.id, node.id);
    const members = node.count > 1 ? plural(node.count, "member") : "";
    const subtitle = [node.subtitle ?? "", members].filter((part) => part !== "").join(" · ");
    vertices.push({ id: node.id, label: node.label, subtitle, tier: node.tier, status: node.status, entity: { tier: node.tier, id: node.entity_id }, members: 0 });
    visit(node.id);
  }
  function visit(parent: string): void {
    const tiers = new Map<string, DagNode[]>();
    for (const node of below.get(parent) ?? []) {
      const siblings = tiers.get(node.tier);
      if (siblings === undefined) tiers.set(node.tier, [node]);
      else siblings.push(node);
    }
    for (const [tier, siblings] of tiers) add(siblings, `${parent}|${tier}`);
  }
  function add(siblings: DagNode[], key: string): void {
    if (siblings.length <= limit) for (const node of siblings) show(node);
    else if (!expanded.has(key)) group(siblings, key);
    else {
      const size = Math.ceil(siblings.length / limit);
      for (let first = 0; first < siblings.length; first += size) add(siblings.slice(first, first + size), `${key}|${first}+${size}`);
    }
  }
  function group(siblings: DagNode[], key: string): void {
    const id = `group:${key}`;
    const counts = new Map<string, number>();
    let worst = siblings[0]!.status;
    const waiting = [...siblings];
    for (let node = waiting.pop(); node !== undefined; node = waiting.pop()) {
      home.set(node.id, id);
      if (severity(node.status) < severity(worst)) worst = node.status;
      const inner = below.get(node.id) ?? [];
      waiting.push(...inner);
      if (inner.length === 0) counts.set(node.status ?? "unknown", (counts.get(node.status ?? "unknown") ?? 0) + 1);
    }
    const subtitle = [...counts].sort((a, b) => severity(a[0]) - severity(b[0])).map(([status, count]) => `${count} ${status}`).join(", ");
    const [first, last] = [siblings[0]!.rank, siblings.at(-1)!.rank];
    const ranks = first === null || last === null ? "" : ` ${first}-${last}`;
    const { tier } = siblings[0]!;
    vertices.push({ id, label: `${siblings.length} ${tier.replace("_mesh", " meshe")}s${ranks}`, subtitle, tier, status: worst, entity: null, members: siblings.length });
  }
  visit(ROOT);
  return { vertices, arcs: arcs(edges, home) };
}

/** Nodes by their parent, in the order of ranks; each node has one parent, so that it is shown once. */
function children(nodes: readonly DagNode[], edges: readonly DagEdge[], byId: ReadonlyMap<string, DagNode>): Map<string, DagNode[]> {
  const parent = new Map<string, string>();
  for (const edge of edges) {
    if (edge.type === "hierarchy" && byId.has(edge.source_id) && !parent.has(edge.target_id)) parent.set(edge.target_id, edge.source_id);
  }
  const below = new Map<string, DagNode[]>();
  for (const node of nodes) {
    const key = parent.get(node.id) ?? ROOT;
    const siblings = below.get(key);
    if (siblings === undefined) below.set(key, [node]);
    else siblings.push(node);
  }
  for (const siblings of below.values()) siblings.sort((a, b) => (a.rank ?? 0) - (b.rank ?? 0));
  return below;
}

/** Edges between what is shown; those of a group are added up. */
function arcs(edges: readonly DagEdge[], home: ReadonlyMap<string, string>): Arc[] {
  const found = new Map<string, Arc>();
  for (const edge of edges) {
    const [source, target] = [home.get(edge.source_id), home.get(edge.target_id)];
    if (source === undefined || target === undefined || (edge.type === "hierarchy" && source === target)) continue;
    const key = `${edge.type} ${source} ${target}`;
    const arc = found.get(key);
    if (arc === undefined) found.set(key, { source, target, type: edge.type, count: edge.count });
    else arc.count += edge.count;
  }
  return [...found.values()];
}

/** The key of the group behind a vertex; null for another vertex. */
export function groupKey(vertex: Vertex): string | null {
  return vertex.entity === null ? vertex.id.slice("group:".length) : null;
}
