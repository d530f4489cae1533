/** Meshes, actors and nodes as items of the tree. */

import type { Actor, Mesh, NodePayload } from "../../api/types";
import { plural } from "../../text/format";
import type { Item } from "./tree";

const CONTAINERS = new Set(["Host", "Proc"]);

export function isActorMesh(mesh: Mesh): boolean {
  return !CONTAINERS.has(mesh.class);
}

export function meshItem(mesh: Mesh): Item {
  return { key: `mesh/${mesh.id}`, label: mesh.given_name, kind: mesh.class, note: extent(mesh.shape_json), leaf: false };
}

export function actorItem(actor: Actor): Item {
  const label = `${actor.rank}: ${actor.display_name ?? actor.full_name}`;
  return { key: `actor/${actor.id}`, label, kind: "actor", status: actor.latest_status, leaf: true };
}

/** Meshes below a mesh, or those without a parent that is known. */
export function meshesBelow(meshes: readonly Mesh[], parent: string | null): Mesh[] {
  const known = new Set(meshes.map((mesh) => mesh.id));
  return meshes.filter((mesh) => (parent === null ? mesh.parent_mesh_id === null || !known.has(mesh.parent_mesh_id) : mesh.parent_mesh_id === parent));
}

/** The one tag of the properties: Root, Host, Proc, Actor or Error. */
export function kindOf(node: NodePayload): string {
  return Object.keys(node.properties)[0] ?? "Error";
}

export function nodeItem(reference: string, node: NodePayload | undefined): Item {
  if (node === undefined) return { key: `node/${reference}`, label: "…", kind: "", leaf: false };
  const kind = kindOf(node);
  const facts = node.properties[kind] ?? {};
  const name = { Host: facts["addr"], Proc: facts["proc_name"], Root: "job", Error: facts["message"] }[kind] ?? node.identity;
  const status = kind === "Actor" ? String(facts["actor_status"] ?? "") : kind === "Error" || facts["is_poisoned"] === true ? "failed" : null;
  const failed = facts["failed_actor_count"];
  const note = typeof failed === "number" && failed > 0 ? `${failed} failed` : node.children.length > 0 ? plural(node.children.length, "child").replace("childs", "children") : "";
  const label = kind === "Actor" && facts["actor_type"] ? `${node.identity} (${facts["actor_type"]})` : String(name);
  return { key: `node/${reference}`, label, kind, note, status, leaf: node.children.length === 0 };
}

/** The extent of a shape, such as `hosts 2 x gpus 8`; empty where the shape is none that is known. */
export function extent(shape_json: string): string {
  try {
    const shape = JSON.parse(shape_json) as unknown;
    if (Array.isArray(shape)) return shape.map((part) => (Array.isArray(part) ? part.join(" ") : String(part))).join(" x ");
    if (shape === null || typeof shape !== "object") return "";
    const { labels, sizes } = shape as { labels?: string[]; sizes?: number[]; slice?: { sizes?: number[] } };
    const numbers = sizes ?? (shape as { slice?: { sizes?: number[] } }).slice?.sizes;
    if (Array.isArray(labels) && Array.isArray(numbers)) return labels.map((label, index) => `${label} ${numbers[index]}`).join(" x ");
    return Object.entries(shape).filter(([, value]) => typeof value === "number").map(([label, value]) => `${label} ${value}`).join(" x ");
  } catch {
    return "";
  }
}
