/** Spans of all processes over time. */

import { useEffect, useMemo, useState } from "preact/hooks";
import { client } from "../../live/session";
import { useLive } from "../../live/useLive";
import { Facts } from "../../parts/Facts";
import { Field } from "../../parts/Fields";
import { RangeChoice, rangeOf } from "../../parts/Range";
import { CoverageLine, Link, Problem } from "../../parts/State";
import { type Column, Table } from "../../parts/Table";
import { href, type Route, setQuery } from "../../router";
import { clock, duration, plural } from "../../text/format";
import { Canvas } from "./Canvas";
import { PROCESSES, processName, type ProcessRow, ROWS, type SpanRow, statement, tracks } from "./spans";

const STANDARD_S = 300;

export function Timeline({ route }: { route: Route }) {
  const { query } = route;
  const set = (change: Record<string, string | null>) => setQuery(route, change);
  const { name, trace } = query;
  const processes = useLive(async (signal) => (await client.query<ProcessRow>(PROCESSES, signal)).rows, [], { every: 60_000 });
  const loaded = useLive(
    async (signal) => {
      const range = rangeOf(query, client.serverNow(), STANDARD_S);
      return { range, ...(await client.query<SpanRow>(statement(range, name, trace), signal)) };
    },
    [query["from"], query["to"], query["last"], name, trace],
    { keep: true },
  );
  const names = useMemo(() => new Map((processes.data ?? []).map((row) => [row.process_id, processName(row)])), [processes.data]);
  const rows = useMemo(() => loaded.data?.rows ?? [], [loaded.data]);
  const drawn = useMemo(() => tracks(rows, names, loaded.data?.range.to_us ?? 0), [rows, names, loaded.data]);
  const [selected, setSelected] = useState(-1);
  useEffect(() => setSelected(rows.findIndex((row) => row.id === query["span"] && row.process_id === query["process"])), [rows]);
  const span = rows[selected] ?? null;
  const columns: Column<SpanRow>[] = [
    { title: "Start", cell: (row) => clock(row.start_us), width: "8rem" },
    { title: "Took", cell: (row) => (row.end_us === null ? "open" : duration(row.end_us - row.start_us)), number: true, width: "7rem" },
    { title: "Span", cell: (row) => row.name, width: "minmax(10rem, 2fr)" },
    { title: "Process", cell: (row) => names.get(row.process_id) ?? row.process_id, width: "minmax(10rem, 2fr)" },
    { title: "Thread", cell: (row) => row.thread_name },
  ];
  return (
    <div class="page fill">
      <h1>Timeline</h1>
      <form class="filters" role="search" onSubmit={(event) => event.preventDefault()}>
        <RangeChoice route={route} standard={STANDARD_S} />
        <Field label="Name" name="name" query={query} set={set} search />
        <Field label="Trace" name="trace" query={query} set={set} />
        <button type="button" onClick={loaded.reload}>
          Read again
        </button>
        <span class="dim" role="status">
          {loaded.data === null ? (loaded.loading ? "loading" : "") : plural(rows.length, "span")}
          {rows.length === ROWS && ", the first ones of this time"}
        </span>
      </form>
      <Problem error={loaded.error} at={loaded.at} />
      {loaded.data?.coverage && <CoverageLine coverage={loaded.data.coverage} />}
      <div class="grow scroll drawing">
        {loaded.data && rows.length === 0 && <p class="empty">No span is kept of this time.</p>}
        {loaded.data && rows.length > 0 && <Canvas tracks={drawn} range={loaded.data.range} selected={span} onSelect={(one) => setSelected(rows.indexOf(one))} />}
      </div>
      <Table label="spans" class="short" columns={columns} rows={rows} selected={selected} onSelect={setSelected} empty="No span." />
      {span && (
        <div class="panel detail">
          <Facts values={{ ...span }} />
          {span.trace_id !== null && <Link to={href("timeline", [], { ...query, trace: span.trace_id })}>Only this trace</Link>}
        </div>
      )}
    </div>
  );
}
