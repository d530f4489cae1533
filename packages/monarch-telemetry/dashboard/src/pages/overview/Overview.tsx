/** How the job is: counts, health, activity, hosts, endpoints, failures by first cause. */

import { useEffect, useMemo, useState } from "preact/hooks";
import { type Kept, merge } from "../../live/keep";
import { useObservable } from "../../live/observable";
import { client, silent } from "../../live/session";
import { useLive } from "../../live/useLive";
import { Chart } from "../../parts/Chart";
import { Donut } from "../../parts/Donut";
import { Panel } from "../../parts/Panel";
import { age, Link, Problem, Status, useNow } from "../../parts/State";
import { type Column, Table } from "../../parts/Table";
import { href, type Route } from "../../router";
import { bytes, count, duration, moment, percent, plural, short } from "../../text/format";
import { points } from "./activity";
import { type Chain, chains } from "./chains";
import { type EndpointRow, endpoints, failures, type HostRow, hosts, type Usage, usage } from "./statements";

const EVERY = { every: 5000, events: true };

export function Overview(_: { route: Route }) {
  const summary = useLive((signal) => client.summary(signal), [], EVERY);
  const data = summary.data;
  return (
    <div class="page">
      <h1>Overview</h1>
      <Problem error={summary.error} at={summary.at} />
      <div class="tiles" aria-busy={data === null}>
        <Tile title="Health" value={data && `${Math.round(data.health_score)}`} note="of 100" />
        <Tile title="Meshes" value={data && count(data.mesh_counts.total)} note={data ? hierarchy(data.hierarchy_counts) : ""} />
        <Tile title="Actors" value={data && count(data.actor_counts.total)} note={data ? `${count(failedActors(data.actor_counts.by_status))} failed` : ""} />
        <Tile title="Messages" value={data && short(data.message_counts.total)} note={data ? `${count(data.errors.failed_messages)} failed` : ""} />
        <Tile title="Delivered" value={data && percent(data.message_counts.delivery_rate)} note="of the messages" />
        <Tile
          title="First failure"
          value={data && (data.timeline.failure_onset_us === null ? "none" : moment(data.timeline.failure_onset_us).slice(11))}
          note={data?.timeline.start_us ? `since ${moment(data.timeline.start_us)}` : ""}
        />
      </div>
      {/* All answers at once would make the first one late. */}
      {!summary.loading && <Details byStatus={data?.actor_counts.by_status ?? {}} />}
    </div>
  );
}

function Details({ byStatus }: { byStatus: Record<string, number> }) {
  const failed = useLive((signal) => failures(client, signal), [], EVERY);
  const activity = useLive((signal) => client.messageActivity(signal), [], EVERY);
  const ranking = useLive((signal) => endpoints(client, signal), [], { every: 5000 });
  const drawn = useMemo(() => (activity.data === null ? null : points(activity.data)), [activity.data]);
  const series = useMemo(() => [{ label: "messages", values: drawn?.counts ?? [] }], [drawn]);
  const causes = useMemo(() => chains(failed.data ?? []), [failed.data]);
  return (
    <>
      <div class="columns">
        <Panel title="Message activity">
          <Problem error={activity.error} at={activity.at} />
          {drawn && <Chart label="messages over time" times={drawn.times} series={series} format={short} height={170} bars />}
        </Panel>
        <Panel title="Actors by status">
          <Donut counts={byStatus} label="actors by status" />
        </Panel>
      </div>
      <Hosts />
      <Panel title={`Failures by first cause${causes.length === 0 ? "" : ` (${causes.length})`}`}>
        <Problem error={failed.error} at={failed.at} />
        {failed.data !== null && causes.length === 0 ? <p class="empty">No failure.</p> : <Failures causes={causes} />}
      </Panel>
      <Panel title="Endpoints">
        <Problem error={ranking.error} at={ranking.at} />
        <Table label="endpoints" columns={ENDPOINTS} rows={ranking.data ?? []} class="short" empty="No call has ended." />
      </Panel>
    </>
  );
}

function Tile({ title, value, note }: { title: string; value: string | null; note: string }) {
  return (
    <div class="tile">
      <div class="title">{title}</div>
      <div class="value">{value ?? "…"}</div>
      <div class="note">{note}</div>
    </div>
  );
}

function hierarchy(counts: { host_meshes: number; proc_meshes: number; actor_meshes: number }): string {
  return `${counts.host_meshes} host, ${counts.proc_meshes} proc, ${counts.actor_meshes} actor`;
}

function failedActors(counts: Record<string, number>): number {
  return Object.entries(counts).reduce((sum, [status, value]) => sum + (status.toLowerCase() === "failed" ? value : 0), 0);
}

const ENDPOINTS: Column<EndpointRow>[] = [
  { title: "Endpoint", cell: (row) => `${row.mesh_name}.${row.endpoint}`, width: "minmax(12rem, 3fr)" },
  { title: "Calls", cell: (row) => count(row.calls), number: true },
  { title: "Errors", cell: (row) => (row.errors > 0 ? <span class="bad">{count(row.errors)}</span> : "0"), number: true },
  { title: "Mean", cell: (row) => duration(row.mean_us), number: true },
  { title: "Longest", cell: (row) => duration(row.max_us), number: true },
];

function Failures({ causes }: { causes: Chain[] }) {
  return (
    <ol class="failures">
      {causes.slice(0, 20).map(({ cause, followed }) => (
        <li key={cause.id}>
          <div>
            <span class={`kind ${cause.kind}`}>{cause.kind}</span> <time>{moment(cause.timestamp_us)}</time>{" "}
            <b>
              {cause.mesh_name}
              {cause.rank !== null && ` rank ${cause.rank}`}
            </b>{" "}
            {cause.endpoint !== null && `in ${cause.endpoint} `}
            {cause.host !== null && `on ${cause.host} `}
            <Link to={href("logs", [], { mesh: cause.mesh_name, rank: cause.rank === null ? null : String(cause.rank) })}>logs</Link>
          </div>
          <pre>{cause.message}</pre>
          {followed.length > 0 && (
            <details>
              <summary>{plural(followed.length, "failure")} followed</summary>
              <ul>
                {followed.slice(0, 50).map((failure) => (
                  <li key={failure.id}>
                    {failure.mesh_name} {failure.rank !== null && `rank ${failure.rank}`}: {failure.message.split("\n")[0]}
                  </li>
                ))}
              </ul>
            </details>
          )}
        </li>
      ))}
    </ol>
  );
}

type Shown = Kept<HostRow> & { used: Usage | undefined };

function Hosts() {
  const loaded = useLive((signal) => hosts(client, signal), [], EVERY);
  const used = useLive((signal) => usage(client, signal), [], { every: 10_000 });
  const missing = useObservable(silent);
  const [kept, setKept] = useState<Kept<HostRow>[]>([]);
  const now = useNow(missing.length > 0);
  useEffect(() => {
    if (loaded.data !== null) setKept((before) => merge(before, loaded.data!, missing, (row) => row.name, loaded.at));
  }, [loaded.data, loaded.at, missing]);
  const rows = useMemo<Shown[]>(() => {
    const byHost = new Map((used.data ?? []).map((row) => [row.host, row]));
    return kept.map((entry) => ({ ...entry, used: byHost.get(entry.row.name) }));
  }, [kept, used.data]);
  const columns: Column<Shown>[] = [
    { title: "Host", cell: ({ row }) => row.name, width: "minmax(9rem, 2fr)" },
    {
      title: "State",
      cell: ({ row, silent: entry }) => (entry === null ? <Status status={row.state} /> : <span class="bad">no answer; data {age(entry, now)}</span>),
      width: "minmax(11rem, 2fr)",
    },
    { title: "Reason", cell: ({ row, silent: entry }) => entry?.reason ?? row.reason ?? "" },
    { title: "Procs", cell: ({ row }) => count(row.procs), number: true, width: "5rem" },
    { title: "CPU", cell: ({ row, used: one }) => (one ? `${Math.round(one.cpu_pct)} % of ${row.cpus * 100} %` : ""), number: true },
    { title: "Memory", cell: ({ row, used: one }) => (one ? `${bytes(one.rss_bytes)} of ${bytes(row.memory_bytes)}` : bytes(row.memory_bytes)), number: true },
    { title: "Version", cell: ({ row }) => row.version, width: "6rem" },
  ];
  return (
    <Panel title="Hosts">
      <Problem error={loaded.error} at={loaded.at} />
      <Table label="hosts" columns={columns} rows={rows} rowClass={({ silent: entry }) => (entry === null ? "" : "old")} class="short" empty="No host." />
    </Panel>
  );
}
