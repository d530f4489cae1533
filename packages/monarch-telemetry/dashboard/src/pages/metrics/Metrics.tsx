/** Charts of metrics and resources over a part of the time, with the slowest spans of that time as examples. */

import { useMemo, useState } from "preact/hooks";
import { client } from "../../live/session";
import { useLive } from "../../live/useLive";
import { Chart } from "../../parts/Chart";
import { Panel } from "../../parts/Panel";
import { chooseRange, type Range, RangeChoice, rangeOf } from "../../parts/Range";
import { Rows } from "../../parts/Rows";
import { Link, Problem } from "../../parts/State";
import { href, type Route, setQuery } from "../../router";
import { bytes, clock, duration, short } from "../../text/format";
import { type Drawn, type GaugeRow, type HistogramRow, pivot, quantiles, rates, type SumRow } from "./series";
import { bucket, type Kind, type MetricName, names, points, RESOURCES, slowest, type Split } from "./statements";

const KINDS = ["gauge", "sum", "histogram"] as const;
const QUANTILES = [0.5, 0.95, 0.99];

export function Metrics({ route }: { route: Route }) {
  const { query } = route;
  const listed = useLive(list, [], { every: 30_000 });
  const metrics = useMemo(() => [...RESOURCES, ...(listed.data ?? [])], [listed.data]);
  const chosen = metrics.find((metric) => metric.name === query["name"] && (query["kind"] ?? metric.kind) === metric.kind) ?? RESOURCES[0]!;
  const [search, setSearch] = useState("");
  const shown = useMemo(() => metrics.filter((metric) => metric.name.toLowerCase().includes(search.toLowerCase())), [metrics, search]);
  const split: Split = query["split"] === "all" ? "all" : "each";
  const moving = rangeOf(query, 0).moving;
  const drawn = useLive((signal) => load(chosen, rangeOf(query, client.serverNow()), split, signal), [chosen.kind, chosen.name, JSON.stringify(query)], {
    every: moving ? 5000 : 0,
    keep: true,
  });
  return (
    <div class="page fill">
      <h1>Metrics</h1>
      <div class="split">
        <div class="stack tree">
          <input type="search" data-search aria-label="Search metrics" placeholder="search metrics" value={search} onInput={(event) => setSearch(event.currentTarget.value)} />
          <Problem error={listed.error} />
          <Rows
            label="metrics"
            class="grow"
            count={shown.length}
            selected={shown.indexOf(chosen)}
            onSelect={(index) => setQuery(route, { name: shown[index]!.name, kind: shown[index]!.kind })}
            row={(index) => ({
              content: (
                <>
                  {shown[index]!.name} <span class="dim">{shown[index]!.kind}</span>
                </>
              ),
            })}
          />
        </div>
        <div class="grow scroll">
          <div class="filters">
            <RangeChoice route={route} />
            <label>
              <input type="checkbox" checked={split === "each"} onChange={(event) => setQuery(route, { split: event.currentTarget.checked ? null : "all" })} /> each series
            </label>
            {!moving && (
              <button type="button" onClick={() => setQuery(route, { from: null, to: null })}>
                Now
              </button>
            )}
          </div>
          <Panel title={`${chosen.name}${chosen.kind === "sum" ? " per second" : ""}`}>
            <Problem error={drawn.error} at={drawn.at} />
            {drawn.data && <Plot metric={chosen} drawn={drawn.data} onRange={(from, to) => chooseRange(route, from, to)} />}
          </Panel>
          <Examples query={query} />
        </div>
      </div>
    </div>
  );
}

async function list(signal: AbortSignal): Promise<MetricName[]> {
  const answers = await Promise.all(KINDS.map((kind) => client.query<{ name: string; unit: string }>(names(kind), signal)));
  return answers.flatMap((answer, index) => answer.rows.map((row) => ({ kind: KINDS[index]! as Kind, name: row.name, unit: row.unit })));
}

async function load(metric: MetricName, range: Range, split: Split, signal: AbortSignal): Promise<Drawn> {
  const step = bucket(range);
  const rows = await client.queryAll(points(metric, range, split), signal);
  if (metric.kind === "sum") return pivot(rates(rows as unknown as SumRow[], step, split === "each"), step);
  if (metric.kind === "histogram") return pivot(quantiles(rows as unknown as HistogramRow[], step, QUANTILES), step);
  return pivot(rows as unknown as GaugeRow[], step);
}

export function formatOf(unit: string, kind: Kind): (value: number) => string {
  if (kind === "sum") return (value) => `${unit === "By" ? bytes(value) : short(value)}/s`;
  if (unit === "By" || unit === "bytes") return bytes;
  const scale = { ns: 1e-3, us: 1, ms: 1e3, s: 1e6 }[unit];
  if (scale !== undefined) return (value) => duration(value * scale);
  return unit === "%" ? (value) => `${short(value)} %` : short;
}

function Plot({ metric, drawn, onRange }: { metric: MetricName; drawn: Drawn; onRange: (from: number, to: number) => void }) {
  const format = useMemo(() => formatOf(metric.unit, metric.kind), [metric.unit, metric.kind]);
  if (drawn.times.length === 0) return <p class="empty">No value in this time.</p>;
  return (
    <>
      <Chart label={metric.name} times={drawn.times} series={drawn.series} format={format} height={320} onRange={onRange} />
      {drawn.more > 0 && <p class="dim">{drawn.more} more series have smaller values</p>}
    </>
  );
}

function Examples({ query }: { query: Route["query"] }) {
  type Example = { name: string; process_id: string; id: string; start_us: number; took_us: number };
  const found = useLive((signal) => client.query<Example>(slowest(rangeOf(query, client.serverNow())), signal), [query["from"], query["to"], query["last"]], { every: 15_000, keep: true });
  return (
    <Panel title="Slowest spans of this time">
      <Problem error={found.error} at={found.at} />
      {found.data?.rows.length === 0 && <p class="empty">No span is kept.</p>}
      <ul class="examples">
        {found.data?.rows.map((row) => (
          <li>
            <Link to={href("timeline", [], { from: String(row.start_us - 1000), to: String(row.start_us + row.took_us + 1000), span: row.id, process: row.process_id })}>
              {duration(row.took_us)} {row.name}
            </Link>{" "}
            <span class="dim">at {clock(row.start_us)}</span>
          </li>
        ))}
      </ul>
    </Panel>
  );
}
