/** Lines of all processes, live. */

import { useEffect, useRef, useState } from "preact/hooks";
import { Schedule } from "../../live/schedule";
import { client } from "../../live/session";
import { useLive } from "../../live/useLive";
import { Choice, Field } from "../../parts/Fields";
import { Problem } from "../../parts/State";
import { Rows } from "../../parts/Rows";
import { type Query, type Route, setQuery } from "../../router";
import { clock, moment, plural } from "../../text/format";
import { statusClass } from "../../text/status";
import { add } from "./buffer";
import { LEVEL_NAMES, type LogRow, newer, older, OVERLAP_US, PAGE_ROWS, STREAMS } from "./filter";

const EVERY_MS = 1500;

export function Logs({ route }: { route: Route }) {
  const { query } = route;
  const set = (change: Record<string, string | null>) => setQuery(route, change);
  const meshes = useLive((signal) => client.meshes(signal), []);
  const { rows, error, at, loadOlder, live, setLive } = useLines(query);
  const [selected, setSelected] = useState(-1);
  const [follow, setFollow] = useState(true);
  const shown = rows?.[selected];
  useEffect(() => setSelected(-1), [query["mesh"], query["rank"], query["level"], query["stream"], query["text"], query["host"]]);

  return (
    <div class="page fill">
      <h1>Logs</h1>
      <form class="filters" role="search" onSubmit={(event) => event.preventDefault()}>
        <Field label="Mesh" name="mesh" query={query} set={set} list="meshes" />
        <datalist id="meshes">
          {meshes.data?.map((mesh) => (
            <option value={mesh.full_name}>{mesh.given_name}</option>
          ))}
        </datalist>
        <Field label="Ranks" name="rank" query={query} set={set} placeholder="0,2-5" />
        <Field label="Host" name="host" query={query} set={set} />
        <Choice label="Level" name="level" query={query} set={set} options={LEVEL_NAMES} any="any level" />
        <Choice label="Stream" name="stream" query={query} set={set} options={STREAMS} any="any stream" />
        <Field label="Text" name="text" query={query} set={set} search />
        <button type="button" aria-pressed={live} onClick={() => setLive(!live)}>
          {live ? "Pause" : "Go on"}
        </button>
        <button type="button" aria-pressed={follow} onClick={() => setFollow(!follow)}>
          {follow ? "Following" : "Follow"}
        </button>
        <span class="dim" role="status">
          {rows === null ? "loading" : plural(rows.length, "line")}
        </span>
      </form>
      <Problem error={error} at={at} />
      <Rows
        label="log lines"
        class="grow lines"
        count={rows?.length ?? 0}
        selected={selected}
        onSelect={(index) => (setSelected(index), setFollow(false))}
        follow={follow}
        onFollow={setFollow}
        onTop={loadOlder}
        empty={rows === null ? "loading" : "No line matches."}
        row={(index) => ({ content: <Line row={rows![index]!} />, class: statusClass(rows![index]!.level) })}
      />
      {shown && (
        <section class="panel detail" aria-label="line">
          <div class="dim">
            {moment(shown.timestamp_us)} · {shown.host} · {shown.proc} · pid {shown.pid} · {shown.stream}
            {shown.logger !== null && ` · ${shown.logger}`}
            {shown.trace_id !== null && ` · trace ${shown.trace_id}`}
          </div>
          <pre>{shown.line}</pre>
        </section>
      )}
    </div>
  );
}

function Line({ row }: { row: LogRow }) {
  return (
    <>
      <time>{clock(row.timestamp_us)}</time>
      <span class="source">
        {row.mesh_name ?? row.proc}
        {row.rank !== null && `[${row.rank}]`}
      </span>
      <span class="level">{row.level ?? row.stream}</span>
      <code>{row.line}</code>
    </>
  );
}

/** The lines of a filter: the last page, then what is new. */
function useLines(query: Query) {
  const filter = JSON.stringify(query);
  const [rows, setRows] = useState<readonly LogRow[] | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const [at, setAt] = useState(0);
  const [live, setLive] = useState(true);
  const current = useRef<readonly LogRow[] | null>(null);
  const older_ = useRef<(() => void) | null>(null);

  function put(next: readonly LogRow[] | null): void {
    current.current = next;
    setRows(next);
  }

  // Another filter has other lines.
  useEffect(() => {
    put(null);
  }, [filter]);

  useEffect(() => {
    const controller = new AbortController();
    let complete = false;
    async function load(sql: () => string, drop: "oldest" | "latest"): Promise<number | null> {
      try {
        const answer = await client.query<LogRow>(sql(), controller.signal);
        if (controller.signal.aborted) return null;
        put(add(current.current ?? [], answer.rows, drop));
        setError(null);
        setAt(Date.now());
        return answer.rows.length;
      } catch (problem) {
        if (!controller.signal.aborted) setError(problem as Error);
        return null;
      }
    }
    const schedule = new Schedule(
      async () => {
        const last = current.current?.at(-1);
        // A burst is read from its beginning: the overlap starts at the last line, which may lie behind the server's time.
        if (last === undefined) await load(() => older(query, null), "oldest");
        else await load(() => newer(query, last.timestamp_us - OVERLAP_US), "oldest");
      },
      live ? EVERY_MS : 0,
    );
    let loading = false;
    older_.current = async () => {
      const first = current.current?.[0];
      if (first === undefined || loading || complete) return;
      loading = true;
      const count = await load(() => older(query, first.timestamp_us), "latest");
      loading = false;
      complete = count !== null && count < PAGE_ROWS;
    };
    const visibility = () => schedule.setHidden(document.hidden);
    visibility();
    document.addEventListener("visibilitychange", visibility);
    if (live || current.current === null) void schedule.now();
    return () => {
      controller.abort();
      schedule.stop();
      document.removeEventListener("visibilitychange", visibility);
    };
  }, [filter, live]);

  return { rows, error, at, live, setLive, loadOlder: () => older_.current?.() };
}
