/** The graph of hosts, procs and actors, with the messages between them. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { client } from "../../live/session";
import { useLive } from "../../live/useLive";
import { Problem } from "../../parts/State";
import { href, navigate, type Route, setQuery } from "../../router";
import { plural, short } from "../../text/format";
import { statusClass } from "../../text/status";
import { HEIGHT, type Placed, place, WIDTH } from "./layout";
import { type Graph, groupKey, rollUp, type Vertex } from "./rollup";
import { keyed, type View, whole, zoom } from "./view";

/** More siblings are one vertex until it is opened. */
const SIBLINGS = 12;

export function Topology({ route }: { route: Route }) {
  const mode = route.query["mode"] === "actor" ? "actor" : "mesh";
  const system = route.query["system"] === "1";
  const messages = route.query["messages"] !== "0";
  const dag = useLive((signal) => client.dag(mode, !system, signal), [mode, system], { every: mode === "mesh" ? 5000 : 15_000, events: mode === "mesh", keep: true });
  const [expanded, setExpanded] = useState<ReadonlySet<string>>(new Set());
  const graph = useMemo(() => rollUp(dag.data?.nodes ?? [], dag.data?.edges ?? [], SIBLINGS, expanded), [dag.data, expanded]);
  // Statuses change often, the shape seldom: the layout depends on the shape.
  const shape = graph.vertices.map((vertex) => vertex.id).join("\n") + graph.arcs.map((arc) => arc.source + arc.target + arc.type).join("\n");
  const placed = useMemo(() => place(graph), [shape]);

  function open(vertex: Vertex): void {
    const key = groupKey(vertex);
    if (key !== null) setExpanded(new Set(expanded).add(key));
    else if (vertex.entity !== null && vertex.entity.tier === "actor") navigate(href("explorer", ["actor", vertex.entity.id]));
    else if (vertex.entity?.tier.endsWith("mesh")) navigate(href("explorer", ["mesh", vertex.entity.id]));
    else navigate(href("explorer"));
  }
  return (
    <div class="page fill">
      <h1>Topology</h1>
      <div class="filters">
        <label>
          Show{" "}
          <select value={mode} onChange={(event) => setQuery(route, { mode: event.currentTarget.value })}>
            <option value="mesh">meshes</option>
            <option value="actor">actors</option>
          </select>
        </label>
        <label>
          <input type="checkbox" checked={messages} onChange={(event) => setQuery(route, { messages: event.currentTarget.checked ? null : "0" })} /> messages
        </label>
        <label>
          <input type="checkbox" checked={system} onChange={(event) => setQuery(route, { system: event.currentTarget.checked ? "1" : null })} /> system
        </label>
        {expanded.size > 0 && (
          <button type="button" onClick={() => setExpanded(new Set())}>
            Collapse
          </button>
        )}
        <span class="dim" role="status">
          {dag.data === null ? "loading" : plural(dag.data.nodes.length, "node")}
          {dag.data?.snapshot_partial && ", some are left out"}
          {dag.data?.snapshot_pending && ", the state is being read"}
          {(dag.data?.resolution_error_count ?? 0) > 0 && `, ${plural(dag.data!.resolution_error_count, "node")} did not answer`}
        </span>
      </div>
      <Problem error={dag.error} at={dag.at} />
      <Canvas graph={graph} placed={placed} messages={messages} open={open} />
    </div>
  );
}

function Canvas({ graph, placed, messages, open }: { graph: Graph; placed: Placed; messages: boolean; open: (vertex: Vertex) => void }) {
  const place_ = useRef<SVGSVGElement>(null);
  const [view, setView] = useState<View | null>(null);
  const drag = useRef<{ x: number; y: number; view: View } | null>(null);
  const proportion = () => {
    const box = place_.current?.getBoundingClientRect();
    return box === undefined || box.height === 0 ? 1.6 : box.width / box.height;
  };
  useEffect(() => setView(whole(placed.width, placed.height, proportion())), [placed]);
  const shown = view ?? whole(placed.width, placed.height, 1.6);

  function point(event: MouseEvent): [number, number] {
    const box = place_.current!.getBoundingClientRect();
    return [shown.x + ((event.clientX - box.left) / box.width) * shown.width, shown.y + ((event.clientY - box.top) / box.height) * shown.height];
  }
  // Vertices outside of the view are not drawn, so that thousands stay usable.
  const near = (x: number, y: number) =>
    x < shown.x + shown.width * 1.5 && x + WIDTH > shown.x - shown.width * 0.5 && y < shown.y + shown.height * 1.5 && y + HEIGHT > shown.y - shown.height * 0.5;
  const detailed = shown.width < 12_000;

  return (
    <div class="grow graph">
      <svg
        ref={place_}
        class="canvas"
        viewBox={`${shown.x} ${shown.y} ${shown.width} ${shown.height}`}
        tabindex={0}
        role="group"
        aria-label="graph; arrow keys move it, plus and minus zoom, Tab goes to the nodes"
        onWheel={(event) => {
          event.preventDefault();
          setView(zoom(shown, event.deltaY > 0 ? 1.15 : 0.87, ...point(event)));
        }}
        onPointerDown={(event) => {
          drag.current = { x: event.clientX, y: event.clientY, view: shown };
        }}
        onPointerMove={(event) => {
          const from = drag.current;
          if (from === null || event.buttons === 0) return;
          const box = place_.current!.getBoundingClientRect();
          const [dx, dy] = [((event.clientX - from.x) / box.width) * shown.width, ((event.clientY - from.y) / box.height) * shown.height];
          setView({ ...from.view, x: from.view.x - dx, y: from.view.y - dy });
        }}
        onPointerUp={() => {
          drag.current = null;
        }}
        onKeyDown={(event) => {
          const next = keyed(event.key, shown);
          if (next === null) return;
          event.preventDefault();
          setView(next);
        }}
      >
        <defs>
          <marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
            <path class="arrow" d="M0 0 8 4 0 8z" />
          </marker>
        </defs>
        {graph.arcs.map((arc) => {
          const [from, to] = [placed.at.get(arc.source), placed.at.get(arc.target)];
          if (from === undefined || to === undefined || (arc.type === "message" && !messages)) return null;
          if (!near(from.x, from.y) && !near(to.x, to.y)) return null;
          return <Edge key={`${arc.type} ${arc.source} ${arc.target}`} arc={arc} from={from} to={to} />;
        })}
        {graph.vertices.map((vertex) => {
          const at = placed.at.get(vertex.id);
          if (at === undefined || !near(at.x, at.y)) return null;
          return <Node key={vertex.id} vertex={vertex} at={at} detailed={detailed} open={() => open(vertex)} />;
        })}
      </svg>
      <Minimap graph={graph} placed={placed} view={shown} go={(x, y) => setView({ ...shown, x: x - shown.width / 2, y: y - shown.height / 2 })} />
      {graph.vertices.length === 0 && <p class="empty">No node.</p>}
    </div>
  );
}

interface Point {
  x: number;
  y: number;
}

function Edge({ arc, from, to }: { arc: Graph["arcs"][number]; from: Point; to: Point }) {
  const [x1, y1, x2, y2] = [from.x + WIDTH, from.y + HEIGHT / 2, to.x, to.y + HEIGHT / 2];
  if (arc.type === "hierarchy") return <path class="edge hierarchy" d={`M${x1} ${y1}C${x1 + 30} ${y1} ${x2 - 30} ${y2} ${x2} ${y2}`} />;
  // Messages bend at the right side, away from the lines of the hierarchy.
  const bend = 40 + Math.abs(from.y - to.y) / 8;
  const end = to.x + WIDTH;
  return (
    <path class="edge message" stroke-width={Math.min(6, 1 + Math.log10(Math.max(1, arc.count)))} marker-end="url(#arrow)" d={`M${x1} ${y1}C${x1 + bend} ${y1} ${end + bend} ${y2} ${end} ${y2}`}>
      <title>{`${short(arc.count)} messages`}</title>
    </path>
  );
}

function Node({ vertex, at, detailed, open }: { vertex: Vertex; at: Point; detailed: boolean; open: () => void }) {
  const cut = (text: string, most: number) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
  return (
    <g
      class={`vertex ${statusClass(vertex.status)} ${vertex.members > 0 ? "rolled" : ""}`}
      transform={`translate(${at.x} ${at.y})`}
      tabindex={0}
      role="button"
      aria-label={`${vertex.label}, ${vertex.tier}, ${vertex.status ?? "no status"}${vertex.members > 0 ? ", open the group" : ""}`}
      onDblClick={open}
      onKeyDown={(event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        event.stopPropagation();
        open();
      }}
    >
      <rect width={WIDTH} height={HEIGHT} rx="6" />
      <title>{`${vertex.label}\n${vertex.subtitle}\n${vertex.status ?? ""}`}</title>
      {detailed && (
        <>
          <text x="10" y="17">
            {cut(vertex.label, 26)}
          </text>
          <text x="10" y="32" class="dim">
            {cut(vertex.subtitle || (vertex.status ?? ""), 32)}
          </text>
        </>
      )}
    </g>
  );
}

function Minimap({ graph, placed, view, go }: { graph: Graph; placed: Placed; view: View; go: (x: number, y: number) => void }) {
  return (
    <svg
      class="minimap"
      viewBox={`0 0 ${placed.width} ${placed.height}`}
      aria-hidden="true"
      onClick={(event) => {
        const svg = event.currentTarget;
        const to = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM()!.inverse());
        go(to.x, to.y);
      }}
    >
      {graph.vertices.slice(0, 2000).map((vertex) => {
        const at = placed.at.get(vertex.id);
        return at && <rect key={vertex.id} class={`fill-${statusClass(vertex.status)}`} x={at.x} y={at.y} width={WIDTH} height={HEIGHT} />;
      })}
      <rect class="frame" x={view.x} y={view.y} width={view.width} height={view.height} />
    </svg>
  );
}
