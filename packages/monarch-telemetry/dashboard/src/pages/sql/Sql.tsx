/** A console of SQL, with the catalog, saved statements and who answered. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { QueryAnswer, Row } from "../../api/types";
import { client } from "../../live/session";
import { useLive } from "../../live/useLive";
import { Panel } from "../../parts/Panel";
import { CoverageLine, Problem } from "../../parts/State";
import { type Column, Table } from "../../parts/Table";
import { href, navigate, type Route } from "../../router";
import { cell, csv, moment, plural } from "../../text/format";
import { EXAMPLES, load, put, type Saved, store } from "./saved";

export function Sql({ route }: { route: Route }) {
  const [text, setText] = useState(route.query["q"] ?? EXAMPLES[0]!.sql);
  const [all, setAll] = useState(false);
  const { answer, error, running, run, more, cancel } = useStatement();
  const [saved, setSaved] = useState(() => load(localStorage));
  const editor = useRef<HTMLTextAreaElement>(null);

  function start(sql: string): void {
    navigate(href("sql", [], { q: sql }), { replace: true });
    run(sql, all);
  }
  function choose(sql: string): void {
    setText(sql);
    editor.current?.focus();
  }
  function save(): void {
    const name = prompt("Name of the statement");
    if (name === null || name.trim() === "") return;
    const next = put(saved, { name: name.trim(), sql: text });
    store(next, localStorage);
    setSaved(next);
  }
  // A link with a statement runs it.
  useEffect(() => {
    if (route.query["q"]) run(route.query["q"], false);
  }, []);

  return (
    <div class="page fill console">
      <h1>SQL</h1>
      <div class="split">
        <aside>
          <Panel title="Statements">
            <Statements saved={saved} choose={choose} drop={(name) => {
              const next = saved.filter((entry) => entry.name !== name);
              store(next, localStorage);
              setSaved(next);
            }} />
          </Panel>
          <Catalog choose={choose} />
        </aside>
        <div class="grow stack">
          <textarea
            ref={editor}
            data-search
            aria-label="Statement"
            spellcheck={false}
            rows={6}
            value={text}
            onInput={(event) => setText(event.currentTarget.value)}
            onKeyDown={(event) => {
              if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
              event.preventDefault();
              start(event.currentTarget.value);
            }}
          />
          <div class="filters">
            <button type="button" class="main" onClick={() => start(text)} disabled={running}>
              Run <kbd>Ctrl Enter</kbd>
            </button>
            <button type="button" onClick={cancel} disabled={!running}>
              Cancel
            </button>
            <label>
              <input type="checkbox" checked={all} onChange={(event) => setAll(event.currentTarget.checked)} /> all hosts must answer
            </label>
            <button type="button" onClick={save}>
              Save
            </button>
            <button type="button" onClick={() => answer && download(answer.rows)} disabled={!answer || answer.rows.length === 0}>
              CSV
            </button>
          </div>
          <Problem error={error} />
          <div role="status" class="dim">
            {running ? "running" : answer && plural(answer.rows.length, "row")}
            {answer?.cursor && (
              <button type="button" onClick={more} disabled={running}>
                More rows
              </button>
            )}
          </div>
          {answer?.coverage && <CoverageLine coverage={answer.coverage} />}
          {answer && <Result rows={answer.rows} />}
        </div>
      </div>
    </div>
  );
}

function useStatement() {
  const [answer, setAnswer] = useState<QueryAnswer | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const [running, setRunning] = useState(false);
  const controller = useRef<AbortController | null>(null);
  const last = useRef({ sql: "", all: false });
  useEffect(() => () => controller.current?.abort(), []);

  async function ask(sql: string, all: boolean, before: QueryAnswer | null): Promise<void> {
    controller.current?.abort();
    const own = new AbortController();
    controller.current = own;
    setRunning(true);
    setError(null);
    try {
      const cursor = before?.cursor;
      const next = await client.query(sql, own.signal, { ...(all ? { require_all: true } : {}), ...(cursor ? { cursor } : {}) });
      if (!own.signal.aborted) setAnswer(before === null ? next : { ...next, rows: [...before.rows, ...next.rows] });
    } catch (problem) {
      if (!own.signal.aborted) {
        setError(problem as Error);
        if (before === null) setAnswer(null);
      }
    }
    if (controller.current === own) setRunning(false);
  }
  return {
    answer,
    error,
    running,
    run: (sql: string, all: boolean) => {
      last.current = { sql, all };
      void ask(sql, all, null);
    },
    more: () => void ask(last.current.sql, last.current.all, answer),
    cancel: () => {
      controller.current?.abort();
      setRunning(false);
    },
  };
}

/** Columns in the order of the first row; a time also as a date. */
function Result({ rows }: { rows: readonly Row[] }) {
  const [selected, setSelected] = useState(-1);
  const columns = useMemo<Column<Row>[]>(
    () =>
      Object.keys(rows[0] ?? {}).map((name) => {
        const time = name.endsWith("_us") && /(^|_)(timestamp|joined|left|started|ended|window|oldest|created|since|end|start)_us$/.test(name);
        return {
          title: name,
          number: typeof rows[0]?.[name] === "number" && !time,
          width: "minmax(8rem, 1fr)",
          cell: (row) => {
            const value = row[name];
            return time && typeof value === "number" && value > 1e14 ? moment(value) : cell(value);
          },
        };
      }),
    [rows],
  );
  useEffect(() => setSelected(-1), [rows]);
  const row = rows[selected];
  return (
    <>
      <Table label="rows" class="grow" columns={columns} rows={rows} selected={selected} onSelect={setSelected} empty="No row." />
      {row && (
        <dl class="facts panel detail">
          {Object.entries(row).map(([name, value]) => (
            <>
              <dt>{name}</dt>
              <dd>
                <pre>{cell(value)}</pre>
              </dd>
            </>
          ))}
        </dl>
      )}
    </>
  );
}

function Statements({ saved, choose, drop }: { saved: readonly Saved[]; choose: (sql: string) => void; drop: (name: string) => void }) {
  return (
    <ul class="links">
      {EXAMPLES.map(({ name, sql }) => (
        <li>
          <button type="button" class="link" onClick={() => choose(sql)}>
            {name}
          </button>
        </li>
      ))}
      {saved.map(({ name, sql }) => (
        <li key={name}>
          <button type="button" class="link" onClick={() => choose(sql)}>
            {name}
          </button>
          <button type="button" class="link dim" aria-label={`Remove ${name}`} onClick={() => drop(name)}>
            ×
          </button>
        </li>
      ))}
    </ul>
  );
}

function Catalog({ choose }: { choose: (sql: string) => void }) {
  const tables = useLive(async (signal) => (await client.query("SHOW TABLES", signal)).rows, []);
  const [search, setSearch] = useState("");
  const names = (tables.data ?? []).map((row) => String(row["table_name"])).filter((name) => name.includes(search.toLowerCase())).sort();
  return (
    <Panel title="Catalog" class="grow scroll">
      <Problem error={tables.error} />
      <input type="search" aria-label="Search tables" placeholder="search tables" value={search} onInput={(event) => setSearch(event.currentTarget.value)} />
      {names.map((name) => (
        <TableColumns key={name} name={name} choose={choose} />
      ))}
    </Panel>
  );
}

function TableColumns({ name, choose }: { name: string; choose: (sql: string) => void }) {
  const [open, setOpen] = useState(false);
  const columns = useLive(async (signal) => (open ? (await client.query(`DESCRIBE ${name}`, signal)).rows : []), [open]);
  return (
    <details onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>{name}</summary>
      <button type="button" class="link" onClick={() => choose(`SELECT * FROM ${name} LIMIT 100`)}>
        SELECT *
      </button>
      <Problem error={columns.error} />
      <ul class="columns-list">
        {columns.data?.map((row) => (
          <li>
            {cell(row["column_name"])} <span class="dim">{cell(row["data_type"])}</span>
          </li>
        ))}
      </ul>
    </details>
  );
}

function download(rows: readonly Row[]): void {
  const url = URL.createObjectURL(new Blob([csv(Object.keys(rows[0] ?? {}), rows)], { type: "text/csv" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = "monarch.csv";
  link.click();
  URL.revokeObjectURL(url);
}
