/** Meshes and actors, hosts and procs: a tree at the left, facts and actions at the right. */

import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Actor, NodePayload } from "../../api/types";
import { ApiError } from "../../api/client";
import { client } from "../../live/session";
import { useLive } from "../../live/useLive";
import { Rows } from "../../parts/Rows";
import { Problem } from "../../parts/State";
import { href, navigate, type Route } from "../../router";
import { statusClass } from "../../text/status";
import { ActorDetail } from "./ActorDetail";
import { actorItem, isActorMesh, meshesBelow, meshItem, nodeItem } from "./items";
import { MeshDetail } from "./MeshDetail";
import { JobDetail, NodeDetail } from "./NodeDetail";
import { flatten, type Item, type Shown, step } from "./tree";

const EVERY = { every: 5000, events: true, keep: true };
/** Requests of nodes at a time: the server has a second for each. */
const PARALLEL = 2;
/** Nodes that wait; of more, those that came into view first are left out until they are in view again. */
const WAITING = 60;
const RETRY_MS = 3000;

export function Explorer({ route }: { route: Route }) {
  const [kind = "", reference = ""] = route.rest;
  const selectedKey = reference === "" ? kind : `${kind}/${reference}`;
  const meshes = useLive((signal) => client.meshes(signal), [], EVERY);
  const root = useLive((signal) => client.root(signal), [], EVERY);
  const [open, setOpen] = useState<ReadonlySet<string>>(() => new Set(["meshes", "job"]));
  const [search, setSearch] = useState("");
  const { actors, loadActors } = useActors();
  const { nodes, want } = useNodes();

  const children = useCallback(
    (item: Item): readonly Item[] | null => {
      const [what, ...rest] = item.key.split("/");
      const name = rest.join("/");
      const list = meshes.data ?? [];
      if (what === "meshes") return meshesBelow(list, null).map(meshItem);
      if (what === "job") return (root.data?.children ?? []).map((child) => nodeItem(child, nodes.get(child)));
      if (what === "node") return nodes.get(name)?.children.map((child) => nodeItem(child, nodes.get(child))) ?? null;
      const below = meshesBelow(list, name).map(meshItem);
      const mesh = list.find((one) => one.id === name);
      if (mesh === undefined || !isActorMesh(mesh)) return below;
      const own = actors.get(name);
      return own === undefined ? null : [...below, ...own.map(actorItem)];
    },
    [meshes.data, root.data, actors, nodes],
  );
  const shown = useMemo(() => {
    const roots: Item[] = [
      { key: "meshes", label: "Meshes", kind: "", leaf: false },
      { key: "job", label: "Hosts and processes", kind: "", leaf: false },
    ];
    const all = flatten(roots, open, children);
    const needle = search.toLowerCase();
    return needle === "" ? all : all.filter((row) => row.label.toLowerCase().includes(needle) || row.kind.toLowerCase().includes(needle));
  }, [open, children, search]);
  const selected = shown.findIndex((row) => row.key === selectedKey);
  const [cursor, setCursor] = useState(0);
  const current = selected >= 0 ? selected : Math.min(cursor, shown.length - 1);

  function toggle(row: Shown): void {
    const next = new Set(open);
    if (row.open) next.delete(row.key);
    else next.add(row.key);
    setOpen(next);
    const [what, ...rest] = row.key.split("/");
    if (!row.open && what === "mesh") loadActors(rest.join("/"));
  }
  function select(index: number): void {
    const row = shown[index];
    setCursor(index);
    if (row === undefined) return;
    const [what, ...rest] = row.key.split("/");
    const to = what === "meshes" ? [] : rest.length === 0 ? [what!] : [what!, rest.join("/")];
    navigate(href("explorer", to), { replace: selectedKey !== "" });
  }

  return (
    <div class="page fill">
      <h1>Explorer</h1>
      <Problem error={meshes.error ?? root.error} at={meshes.at} />
      <div class="split">
        <div class="stack tree">
          <input
            type="search"
            data-search
            aria-label="Search open rows"
            placeholder="search open rows"
            value={search}
            onInput={(event) => setSearch(event.currentTarget.value)}
          />
          <Rows
            label="job"
            role="tree"
            class="grow"
            count={shown.length}
            selected={current}
            onSelect={select}
            onOpen={(index) => shown[index] && !shown[index].leaf && toggle(shown[index])}
            onKey={(event, index) => {
              const action = step(event.key, shown, index);
              if (action === null) return false;
              if ("toggle" in action) toggle(shown[action.toggle]!);
              else select(action.select);
              return true;
            }}
            row={(index) => {
              const row = shown[index]!;
              if (row.key.startsWith("node/")) want(row.key.slice("node/".length));
              return {
                attributes: { "aria-level": row.depth + 1, ...(row.leaf ? {} : { "aria-expanded": row.open }) },
                content: <TreeRow row={row} toggle={() => toggle(row)} />,
              };
            }}
          />
        </div>
        <div class="grow scroll">
          {kind === "actor" && <ActorDetail key={reference} id={reference} />}
          {kind === "mesh" && <MeshDetail key={reference} mesh={meshes.data?.find((mesh) => mesh.id === reference) ?? null} />}
          {kind === "node" && <NodeDetail key={reference} reference={reference} />}
          {kind === "job" && root.data && <JobDetail node={root.data} />}
          {kind === "" && <p class="empty">Select a row: arrow keys move, → opens a branch.</p>}
        </div>
      </div>
    </div>
  );
}

function TreeRow({ row, toggle }: { row: Shown; toggle: () => void }) {
  return (
    <span class="tree-row" style={{ paddingLeft: `${row.depth * 1.1}rem` }}>
      <span class="twig" onClick={(event) => (event.stopPropagation(), row.leaf || toggle())}>
        {row.leaf ? "" : row.open ? "▾" : "▸"}
      </span>
      {row.status != null && row.status !== "" && <span class={`dot ${statusClass(row.status)}`} title={row.status} />}
      <span class="label">{row.label}</span>
      {row.status != null && statusClass(row.status) === "bad" && <span class="bad"> {row.status}</span>}
      <span class="dim">
        {" "}
        {row.kind} {row.note}
      </span>
    </span>
  );
}

/** Actors of the meshes that were opened. */
function useActors() {
  const [actors, setActors] = useState<ReadonlyMap<string, Actor[]>>(new Map());
  const controller = useRef(new AbortController());
  useEffect(() => () => controller.current.abort(), []);
  const loadActors = useCallback((meshId: string) => {
    const { signal } = controller.current;
    client.actors(meshId, signal).then(
      (list) => setActors((old) => new Map(old).set(meshId, [...list].sort((a, b) => a.rank - b.rank))),
      () => setActors((old) => new Map(old).set(meshId, [])),
    );
  }, []);
  return { actors, loadActors };
}

/** Nodes that came into view, loaded a few at a time. */
function useNodes() {
  const [nodes, setNodes] = useState<ReadonlyMap<string, NodePayload>>(new Map());
  const state = useRef({ asked: new Set<string>(), queue: [] as string[], running: 0, controller: new AbortController() });
  useEffect(() => () => state.current.controller.abort(), []);

  const next = useCallback(() => {
    const { queue, controller } = state.current;
    while (state.current.running < PARALLEL && queue.length > 0) {
      const reference = queue.pop()!;
      state.current.running += 1;
      client
        .node(reference, controller.signal)
        .catch((error: Error): NodePayload => {
          if (error instanceof ApiError && error.status >= 500) again(reference);
          return { identity: reference, properties: { Error: { code: "", message: error.message } }, children: [], parent: null, as_of: "" };
        })
        .then((node) => {
          state.current.running -= 1;
          if (controller.signal.aborted) return;
          setNodes((old) => new Map(old).set(reference, node));
          next();
        });
    }
  }, []);
  /** A node that is late is asked for again, in view or not: a search may have hidden it for its lateness. */
  const again = useCallback((reference: string) => {
    setTimeout(() => {
      if (state.current.controller.signal.aborted) return;
      state.current.queue.unshift(reference);
      next();
    }, RETRY_MS);
  }, []);
  const want = useCallback((reference: string) => {
    if (state.current.asked.has(reference)) return;
    state.current.asked.add(reference);
    state.current.queue.push(reference);
    if (state.current.queue.length > WAITING) state.current.asked.delete(state.current.queue.shift()!);
    queueMicrotask(next);
  }, []);
  return { nodes, want };
}

