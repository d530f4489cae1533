import { expect, test } from "vitest";
import type { DagEdge, DagNode, Diagnosis, Mesh, StackEntry } from "../src/api/types";
import { headline, listed, lookedAt } from "../src/pages/diagnose/sentences";
import { extent, meshesBelow } from "../src/pages/explorer/items";
import { spansOf } from "../src/pages/explorer/statuses";
import { flatten, type Item, step } from "../src/pages/explorer/tree";
import { add } from "../src/pages/logs/buffer";
import { conditions, type LogRow, rankCondition } from "../src/pages/logs/filter";
import { pivot, quantile, quantiles, rates, readable, type SumRow } from "../src/pages/metrics/series";
import { bucket } from "../src/pages/metrics/statements";
import { chains, type Failure } from "../src/pages/overview/chains";
import { load, put } from "../src/pages/sql/saved";
import { flame, focus, placesText } from "../src/pages/stacks/flame";
import { niceStep } from "../src/pages/timeline/Canvas";
import { type SpanRow, tracks } from "../src/pages/timeline/spans";
import { place } from "../src/pages/topology/layout";
import { groupKey, rollUp } from "../src/pages/topology/rollup";
import { keyed, whole, zoom } from "../src/pages/topology/view";

function failure(id: string, cause_id: string | null, timestamp_us: number): Failure {
  return { id, cause_id, timestamp_us, kind: "user", first_cause: cause_id === null, mesh_name: "m", rank: 0, host: null, endpoint: null, message: id };
}

test("failures are grouped by their first cause", () => {
  const found = chains([failure("3", "2", 30), failure("1", null, 10), failure("2", "1", 20), failure("9", "8", 40)]);
  expect(found.map(({ cause, followed }) => [cause.id, followed.map((one) => one.id)])).toEqual([
    ["9", []],
    ["1", ["2", "3"]],
  ]);
});

test("a circle of causes ends", () => {
  expect(chains([failure("1", "2", 1), failure("2", "1", 2)]).flatMap(({ cause, followed }) => [cause, ...followed])).toHaveLength(2);
});

function node(id: string, tier: DagNode["tier"], status: string | null = "Idle"): DagNode {
  return { id, entity_id: id, tier, label: id, subtitle: null, status, mesh_id: null, rank: null, is_system: false, count: 1 };
}

function edge(source_id: string, target_id: string, type: DagEdge["type"] = "hierarchy", count = 1): DagEdge {
  return { id: `${source_id} ${target_id} ${type}`, source_id, target_id, type, count };
}

test("many siblings become one vertex with their worst status", () => {
  const actors = Array.from({ length: 10_000 }, (_, rank) => node(`a${rank}`, "actor", rank === 77 ? "Failed" : "Idle"));
  const nodes = [node("mesh", "actor_mesh"), node("other", "actor_mesh"), node("b", "actor"), ...actors];
  const edges = [...actors.map((actor) => edge("mesh", actor.id)), edge("other", "b"), edge("b", "a1", "message", 5), edge("b", "a2", "message", 6), edge("a1", "a2", "message")];
  const { vertices, arcs } = rollUp(nodes, edges, 12, new Set());
  expect(vertices.map((vertex) => vertex.id).sort()).toEqual(["b", "group:mesh|actor", "mesh", "other"]);
  const group = vertices.find((vertex) => vertex.members > 0)!;
  expect(group).toMatchObject({ status: "Failed", members: 10_000, subtitle: "1 Failed, 9999 Idle" });
  expect(arcs.find((arc) => arc.type === "message" && arc.source === "b")).toMatchObject({ target: group.id, count: 11 });
  expect(arcs.filter((arc) => arc.type === "hierarchy")).toHaveLength(2);
  // Opening goes down by parts, so that no step shows thousands.
  const opened = new Set<string>();
  for (let steps = 0; steps < 4; steps += 1) {
    const { vertices: shown } = rollUp(nodes, edges, 12, opened);
    expect(shown.length).toBeLessThan(150);
    const next = shown.find((vertex) => vertex.status === "Failed")!;
    if (groupKey(next) === null) break;
    opened.add(groupKey(next)!);
  }
  expect(rollUp(nodes, edges, 12, opened).vertices.map((vertex) => vertex.id)).toContain("a77");
});

test("a group hides what is below its members, and shows the worst of it", () => {
  const procs = Array.from({ length: 20 }, (_, rank) => node(`p${rank}`, "proc", "running"));
  const actors = procs.map((_, rank) => node(`a${rank}`, "actor", rank === 3 ? "Failed" : "Idle"));
  const edges = [...procs.map((proc) => edge("h", proc.id)), ...procs.map((proc, rank) => edge(proc.id, `a${rank}`)), edge("a1", "a2", "message")];
  const { vertices, arcs } = rollUp([node("h", "host", "ready"), ...procs, ...actors], edges, 12, new Set());
  expect(vertices.map((vertex) => [vertex.label, vertex.status, vertex.subtitle])).toEqual([
    ["h", "ready", ""],
    ["20 procs", "Failed", "1 Failed, 19 Idle"],
  ]);
  expect(arcs.map((arc) => arc.type)).toEqual(["hierarchy", "message"]);
});

test("edges of nodes that are left out are left out", () => {
  expect(rollUp([node("a", "actor")], [edge("gone", "a")], 12, new Set()).arcs).toEqual([]);
});

test("no two vertices have the same place", () => {
  const nodes = [node("h", "host_mesh"), ...Array.from({ length: 8 }, (_, index) => node(`p${index}`, "proc"))];
  for (const copies of [1, 300]) {
    const all = Array.from({ length: copies }, (_, copy) => nodes.map((one) => ({ ...one, id: `${copy}${one.id}` }))).flat();
    const edges = all.filter((one) => one.tier === "proc").map((one) => edge(one.id.replace(/p\d$/, "h"), one.id));
    const { at } = place(rollUp(all, edges, Number.POSITIVE_INFINITY, new Set()));
    expect(new Set([...at.values()].map(({ x, y }) => `${x} ${y}`)).size).toBe(all.length);
  }
});

test("zooming keeps the point under the pointer", () => {
  const view = whole(1000, 500, 1);
  expect(view).toEqual({ x: 0, y: -250, width: 1000, height: 1000 });
  const nearer = zoom(view, 0.5, 250, 250);
  expect((250 - nearer.x) / nearer.width).toBeCloseTo(0.25);
  expect(keyed("ArrowRight", view)!.x).toBe(100);
  expect(keyed("q", view)).toBeNull();
});

test("an open branch whose children are not there shows that it loads", () => {
  const item = (key: string, leaf = false): Item => ({ key, label: key, kind: "", leaf });
  const below = (one: Item) => (one.key === "a" ? [item("a1", true), item("b")] : null);
  const shown = flatten([item("a"), item("z", true)], new Set(["a", "b"]), below);
  expect(shown.map((row) => [row.label, row.depth, row.parent])).toEqual([
    ["a", 0, -1],
    ["a1", 1, 0],
    ["b", 1, 0],
    ["loading", 2, 2],
    ["z", 0, -1],
  ]);
  expect(step("ArrowLeft", shown, 0)).toEqual({ toggle: 0 });
  expect(step("ArrowLeft", shown, 1)).toEqual({ select: 0 });
  expect(step("ArrowRight", shown, 0)).toEqual({ select: 1 });
  expect(step("ArrowRight", shown, 1)).toBeNull();
});

test("shapes of all forms are read", () => {
  expect(extent('{"hosts": 2, "gpus": 8}')).toBe("hosts 2 x gpus 8");
  expect(extent('{"labels": ["gpus"], "offset": 0, "sizes": [4], "strides": [1]}')).toBe("gpus 4");
  expect(extent("no")).toBe("");
});

test("a mesh whose parent is gone is a root", () => {
  const mesh = (id: string, parent_mesh_id: string | null) => ({ id, parent_mesh_id }) as Mesh;
  const all = [mesh("1", null), mesh("2", "1"), mesh("3", "9")];
  expect(meshesBelow(all, null).map((one) => one.id)).toEqual(["1", "3"]);
  expect(meshesBelow(all, "1").map((one) => one.id)).toEqual(["2"]);
});

test("a status lasts until the next one, and the last until now", () => {
  const event = (new_status: string, timestamp_us: number) => ({ id: "1", actor_id: "1", timestamp_us, new_status, reason: null });
  expect(spansOf([event("Idle", 20), event("Created", 10)], 50).map((span) => span.end_us)).toEqual([20, 50]);
  expect(spansOf([event("Failed", 20)], 50)[0]!.end_us).toBe(20);
});

function line(timestamp_us: number, seq: number): LogRow {
  return { timestamp_us, seq, host: "h", proc: "p", pid: 1, mesh_name: null, rank: null, stream: "stdout", level: null, logger: null, line: `${seq}`, trace_id: null };
}

test("each line is there once, in order, whatever pages overlap", () => {
  const rows = add([], [line(3, 3), line(1, 1), line(2, 2)], "oldest");
  const more = add(rows, [line(2, 2), line(3, 3), line(3, 4)], "oldest");
  expect(more.map((row) => row.seq)).toEqual([1, 2, 3, 4]);
  expect(add(more, [line(3, 4)], "oldest")).toBe(more);
  expect(add(more, [line(9, 9)], "oldest", 3).map((row) => row.seq)).toEqual([3, 4, 9]);
  expect(add(more, [line(0, 0)], "latest", 3).map((row) => row.seq)).toEqual([0, 1, 2]);
});

test("the filter of logs becomes conditions", () => {
  expect(rankCondition("0, 2-5")).toBe("(rank = 0 OR rank BETWEEN 2 AND 5)");
  expect(() => rankCondition("0; DROP")).toThrow("'0; DROP' is no rank");
  expect(conditions({ level: "error", text: "it's" }).filter(Boolean)).toEqual(["lower(level) IN ('error', 'critical', 'fatal')", "line ILIKE '%it''s%'"]);
});

test("a counter that starts again does not become negative", () => {
  const row = (t: number, top: number, start_us = 0): SumRow => ({ t, series: "a", temporality: "cumulative", is_monotonic: true, start_us, total: null, top });
  expect(rates([row(0, 5), row(1e6, 9), row(2e6, 2, 1)], 1e6, true).map((one) => one.value)).toEqual([4, 2]);
  const delta = (series: string): SumRow => ({ ...row(0, 0), series, temporality: "delta", total: 10 });
  expect(rates([delta("a"), delta("b")], 5e6, false)).toEqual([{ t: 0, series: "", value: 4 }]);
});

test("series have a gap where a bucket has no point", () => {
  const drawn = pivot(
    [
      { t: 10, series: "a", value: 1 },
      { t: 30, series: "a", value: 3 },
      { t: 20, series: "b", value: 9 },
    ],
    10,
  );
  expect(drawn.times).toEqual([10, 20, 30]);
  expect(drawn.series).toEqual([
    { label: "b", values: [null, 9, null] },
    { label: "a", values: [1, null, 3] },
  ]);
  expect(readable('{"host.name":"a"} {"x":1}')).toBe("host.name=a x=1");
  expect(readable(" {}")).toBe("all");
});

test("quantiles lie in the bucket that has them", () => {
  expect(quantile({ bounds: [10, 20], counts: [5, 5, 0] }, 0.75)).toBe(15);
  expect(quantile({ bounds: [10], counts: [0, 3] }, 0.5)).toBe(10);
  expect(quantile({ bounds: [], counts: [] }, 0.5)).toBeNull();
  const row = (timestamp_us: number, counts: number[]) => ({
    timestamp_us, series: "", temporality: "cumulative", start_us: 0, count: 1, total: 1, bounds_json: "[10, 20]", bucket_counts_json: JSON.stringify(counts),
  });
  expect(quantiles([row(0, [9, 0, 0]), row(5, [9, 4, 0])], 10, [1])).toEqual([{ t: 0, series: "p100", value: 20 }]);
  expect(bucket({ from_us: 0, to_us: 900e6, moving: true })).toBe(10e6);
});

function entry(threads: number, ...names: string[]): StackEntry {
  const frames = names.reverse().map((name) => ({ name, filename: "f.py", line: 1 }));
  return { thread: "main", note: null, procs: threads, threads, places: [], frames };
}

test("a flame graph has the parts of the whole", () => {
  const frames = flame([entry(3, "main", "step"), entry(1, "main", "load")]);
  expect(frames.map((frame) => [frame.name, frame.x, frame.width])).toEqual([
    ["all threads", 0, 1],
    ["main", 0, 1],
    ["step", 0, 0.75],
    ["load", 0.75, 0.25],
  ]);
  expect(focus(frames, frames[3]!.key).map((frame) => [frame.name, frame.x, frame.width])).toEqual([
    ["all threads", 0, 1],
    ["main", 0, 1],
    ["load", 0, 1],
  ]);
  expect(flame([])).toEqual([]);
  expect(placesText([{ path: "<root>.<w>", mesh: "w", ranks: "0,2-5", procs: 5 }])).toBe("w[0,2-5]");
});

test("spans that overlap are in different lanes", () => {
  const span = (id: string, start_us: number, end_us: number | null, thread_name = "main"): SpanRow => ({ process_id: "1", id, name: id, target: "", level: "info", thread_name, start_us, end_us, trace_id: null });
  const [main, other] = tracks([span("outer", 0, 100), span("inner", 10, 50), span("open", 60, null), span("later", 100, 110), span("x", 0, 1, "other")], new Map([["1", "trainer[0]"]]), 200);
  expect(main!.spans.map(({ span: { id }, lane }) => [id, lane])).toEqual([["outer", 0], ["inner", 1], ["open", 1], ["later", 0]]);
  expect([main!.lanes, main!.label, other!.thread]).toEqual([2, "trainer[0]", "other"]);
  expect([0.3, 3, 60, 70].map(niceStep)).toEqual([1, 5, 100, 100]);
});

test("saved statements that are malformed are left out", () => {
  expect(load({ getItem: () => '[{"name": "a", "sql": "s"}, {"name": 1}, null]' })).toEqual([{ name: "a", sql: "s" }]);
  expect(load({ getItem: () => "{" })).toEqual([]);
  expect(put([{ name: "a", sql: "1" }], { name: "a", sql: "2" })).toEqual([{ name: "a", sql: "2" }]);
});

const HEALTHY: Diagnosis = {
  causes: [],
  procs: 8,
  healthy_procs: 8,
  hosts: 3,
  answered_hosts: 2,
  coverage: 0.999,
  busy: [],
  detectors: ["ended", "lock"],
  sources: ["8 procs", "stacks"],
  missing: [],
  left_out: [],
  text: "nothing is wrong",
};

test("a diagnosis without causes tells what was looked at", () => {
  expect(headline(HEALTHY)).toBe("Nothing is wrong");
  // A part that is missing is never rounded away.
  expect(lookedAt(HEALTHY)).toContainEqual(["answered", "2 of 3 hosts, coverage 99 %"]);
  expect(headline({ ...HEALTHY, procs: 0 })).toBe("No cause was found, and no process could be looked at");
  const cause = { detector: "lock", sentence: "a", facts: [], waiting: [], consequences: [], command: "" };
  expect(headline({ ...HEALTHY, causes: [cause] })).toBe("1 cause");
});

test("long lists of names end with their rest", () => {
  expect(listed(["a", "b"])).toBe("a, b");
  expect(listed(Array.from({ length: 14 }, (_, rank) => `r${rank}`))).toMatch(/^r0, .*, r11 and 2 more$/);
});
