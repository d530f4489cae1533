/** A node of the admin API: the job, a host, a proc or an actor as it is now. */

import { useState } from "preact/hooks";
import type { ConfigEntry, NodePayload, PyspyAnswer, Row, Value } from "../../api/types";
import { client } from "../../live/session";
import { useLive } from "../../live/useLive";
import { Facts } from "../../parts/Facts";
import { Panel } from "../../parts/Panel";
import { Problem } from "../../parts/State";
import { type Column, Table } from "../../parts/Table";
import { cell, duration } from "../../text/format";
import { Threads } from "./ActorDetail";
import { Confirm } from "./Confirm";
import { kindOf, nodeItem } from "./items";

export function NodeDetail({ reference }: { reference: string }) {
  const loaded = useLive((signal) => client.node(reference, signal), [reference], { every: 2000, events: true });
  const node = loaded.data;
  if (node === null) return <Problem error={loaded.error} />;
  const kind = kindOf(node);
  const { flight_recorder: recorder, failure_info: failure, ...facts } = node.properties[kind] ?? {};
  return (
    <>
      <Panel title={`${kind}: ${nodeItem(reference, node).label}`}>
        <Problem error={loaded.error} at={loaded.at} />
        <Age node={node} />
        <Facts values={facts} />
        {kind === "Proc" && <ProcActions reference={reference} name={nodeItem(reference, node).label} />}
      </Panel>
      {failure != null && (
        <Panel title="Failure">
          <Facts values={{ failure } as Record<string, Value>} />
        </Panel>
      )}
      {recorder != null && recorder !== "" && (
        <Panel title="Flight recorder">
          <pre>{pretty(String(recorder))}</pre>
        </Panel>
      )}
      {kind === "Proc" && <ProcStacks reference={reference} />}
      {kind === "Proc" && <ProcProfile reference={reference} />}
      {kind === "Proc" && <ProcConfig reference={reference} />}
    </>
  );
}

/** The root of the tree. */
export function JobDetail({ node }: { node: NodePayload }) {
  return (
    <Panel title={`Job: ${node.identity}`}>
      <Age node={node} />
      <Facts values={node.properties["Root"] ?? {}} />
      <JobActions job={node.identity} />
    </Panel>
  );
}

function Age({ node }: { node: NodePayload }) {
  const at = Date.parse(node.as_of) * 1000;
  if (Number.isNaN(at)) return null;
  return <p class="dim">as it was {duration(Math.max(0, client.serverNow() - at))} ago</p>;
}

function pretty(text: string): string {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function ProcActions({ reference, name }: { reference: string; name: string }) {
  return (
    <div class="filters">
      <Confirm title="Kill proc" question={`Kill the process of ${name}?`} action="kill_proc" body={{ target: reference }} />
      <Confirm
        title="Interrupt"
        question={`Send SIGINT to the process of ${name}?`}
        action="signal_proc"
        body={{ target: reference, signal: "SIGINT" }}
      />
    </div>
  );
}

function JobActions({ job }: { job: string }) {
  return (
    <div class="filters">
      <Confirm title="Heal job" question={`Ask the scheduler for hosts in the place of those that ${job} has lost?`} action="heal_job" body={{ target: job }} />
      <Confirm title="Kill job" question={`End ${job} with all its processes?`} action="kill_job" body={{ target: job }} />
    </div>
  );
}

function ProcStacks({ reference }: { reference: string }) {
  const [asked, setAsked] = useState(0);
  const stacks = useLive(async (signal) => (asked === 0 ? null : client.pyspy(reference, signal)), [reference, asked]);
  return (
    <Panel title="Stacks">
      <button type="button" onClick={() => setAsked(asked + 1)}>
        Read stacks now
      </button>
      <Problem error={stacks.error} />
      {stacks.data && <Pyspy answer={stacks.data} />}
    </Panel>
  );
}

const SECONDS = 5;
const SAMPLES_HZ = 100;

/** Samples of a proc as a flame graph, drawn by the server. */
function ProcProfile({ reference }: { reference: string }) {
  const [asked, setAsked] = useState(0);
  const profile = useLive(
    async (signal) => {
      if (asked === 0) return null;
      const request = { duration_s: SECONDS, rate_hz: SAMPLES_HZ, native: false, threads: true, nonblocking: true };
      return `data:image/svg+xml,${encodeURIComponent(await client.profile(reference, request, signal))}`;
    },
    [reference, asked],
  );
  return (
    <Panel title="Flame graph">
      <button type="button" onClick={() => setAsked(asked + 1)} disabled={asked > 0 && profile.loading}>
        Record {SECONDS} s
      </button>{" "}
      {asked > 0 && profile.loading && <span role="status">recording</span>}
      <Problem error={profile.error} />
      {profile.data && <img class="profile" src={profile.data} alt="flame graph of the proc" />}
    </Panel>
  );
}

function Pyspy({ answer }: { answer: PyspyAnswer }) {
  if ("BinaryNotFound" in answer) return <p class="problem">py-spy was not found; searched: {answer.BinaryNotFound.searched.join(", ")}</p>;
  if ("Failed" in answer) return <pre class="problem">{answer.Failed.stderr}</pre>;
  const rows: Row[] = answer.Ok.stack_traces.flatMap((thread) =>
    thread.frames.map((frame) => ({
      thread_id: String(thread.thread_id),
      thread_name: thread.thread_name ?? null,
      owns_gil: thread.owns_gil ?? null,
      name: frame.name,
      filename: frame.short_filename ?? frame.filename,
      line: frame.line,
    })),
  );
  return (
    <>
      {answer.Ok.warnings.map((warning) => (
        <p class="dim">{warning}</p>
      ))}
      <Threads rows={rows} />
    </>
  );
}

const CONFIG: Column<ConfigEntry>[] = [
  { title: "Setting", cell: (entry) => entry.name, width: "minmax(12rem, 2fr)" },
  { title: "Value", cell: (entry) => (entry.changed_from_default ? <b>{cell(entry.value)}</b> : cell(entry.value)) },
  { title: "Default", cell: (entry) => cell(entry.default_value) },
  { title: "From", cell: (entry) => entry.source },
  { title: "Variable", cell: (entry) => entry.env_var ?? "", width: "minmax(10rem, 2fr)" },
];

function ProcConfig({ reference }: { reference: string }) {
  const [open, setOpen] = useState(false);
  const config = useLive(async (signal) => (open ? (await client.config(reference, signal)).entries : null), [reference, open]);
  return (
    <Panel title="Configuration">
      <button type="button" aria-expanded={open} onClick={() => setOpen(!open)}>
        {open ? "Hide" : "Show"}
      </button>
      <Problem error={config.error} />
      {open && config.data && <Table label="configuration" class="short" columns={CONFIG} rows={config.data} />}
    </Panel>
  );
}
