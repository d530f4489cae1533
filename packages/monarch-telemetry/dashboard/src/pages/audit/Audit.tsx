/** Each query, action and refusal. */

import { useMemo, useState } from "preact/hooks";
import { containing, integer, literal, where } from "../../api/sql";
import { client } from "../../live/session";
import { useLive } from "../../live/useLive";
import { Facts } from "../../parts/Facts";
import { Choice, Field } from "../../parts/Fields";
import { RangeChoice, rangeOf } from "../../parts/Range";
import { CoverageLine, Problem, Status } from "../../parts/State";
import { type Column, Table } from "../../parts/Table";
import { type Query, type Route, setQuery } from "../../router";
import { moment, plural } from "../../text/format";

type AuditRow = { timestamp_us: number; who: string; scope: string; source: string; action: string; target: string; outcome: string; detail: string | null };

export const OUTCOMES = ["done", "refused", "failed"];
const ROWS = 2000;

export function statement(query: Query, now_us: number): string {
  const { who, outcome, text } = query;
  const { from_us, to_us } = rangeOf(query, now_us, 3600);
  const conditions = [
    `timestamp_us BETWEEN ${integer(from_us)} AND ${integer(to_us)}`,
    who ? `who = ${literal(who)}` : null,
    outcome ? `outcome = ${literal(outcome)}` : null,
    text ? `(action ILIKE ${containing(text)} OR target ILIKE ${containing(text)} OR detail ILIKE ${containing(text)})` : null,
  ];
  return `SELECT timestamp_us, who, scope, source, action, target, outcome, detail FROM audit${where(conditions)} ORDER BY timestamp_us DESC LIMIT ${ROWS}`;
}

const COLUMNS: Column<AuditRow>[] = [
  { title: "Time", cell: (row) => moment(row.timestamp_us), width: "11rem" },
  { title: "Who", cell: (row) => row.who },
  { title: "Scope", cell: (row) => row.scope, width: "5rem" },
  { title: "From", cell: (row) => row.source },
  { title: "Action", cell: (row) => row.action, width: "minmax(8rem, 1.5fr)" },
  { title: "Target", cell: (row) => row.target, width: "minmax(8rem, 2fr)" },
  { title: "Outcome", cell: (row) => <Status status={row.outcome} />, width: "7rem" },
  { title: "Detail", cell: (row) => row.detail ?? "", width: "minmax(8rem, 2fr)" },
];

export function Audit({ route }: { route: Route }) {
  const { query } = route;
  const set = (change: Record<string, string | null>) => setQuery(route, change);
  const answer = useLive((signal) => client.query<AuditRow>(statement(query, client.serverNow()), signal), [JSON.stringify(query)], { every: 5000, keep: true });
  const rows = useMemo(() => answer.data?.rows ?? [], [answer.data]);
  const [selected, setSelected] = useState(-1);
  const row = rows[selected];
  return (
    <div class="page fill">
      <h1>Audit</h1>
      <form class="filters" role="search" onSubmit={(event) => event.preventDefault()}>
        <RangeChoice route={route} standard={3600} />
        <Field label="Who" name="who" query={query} set={set} />
        <Choice label="Outcome" name="outcome" query={query} set={set} options={OUTCOMES} any="any outcome" />
        <Field label="Text" name="text" query={query} set={set} search />
        <span class="dim" role="status">
          {answer.data && plural(rows.length, "row")}
        </span>
      </form>
      <Problem error={answer.error} at={answer.at} />
      {answer.data?.coverage && <CoverageLine coverage={answer.data.coverage} />}
      <Table label="audit" class="grow" columns={COLUMNS} rows={rows} selected={selected} onSelect={setSelected} empty="Nothing in this time." />
      {row && (
        <div class="panel detail">
          <Facts values={row} />
        </div>
      )}
    </div>
  );
}
