/** One actor: facts, status over time, messages in and out, stacks of its process. */

import { useState } from "preact/hooks";
import type { Message, Row, StatusEvent } from "../../api/types";
import { id as idLiteral } from "../../api/sql";
import { client } from "../../live/session";
import { useLive } from "../../live/useLive";
import { Facts } from "../../parts/Facts";
import { Panel } from "../../parts/Panel";
import { Link, Problem, Status } from "../../parts/State";
import { type Column, Table } from "../../parts/Table";
import { href } from "../../router";
import { cell, clock, duration, moment } from "../../text/format";
import { statusClass } from "../../text/status";
import { spansOf } from "./statuses";

const EVERY = { every: 5000, events: true };

export function ActorDetail({ id }: { id: string }) {
  const actor = useLive((signal) => client.actor(id, signal), [id], EVERY);
  const events = useLive((signal) => client.statusEvents(id, signal), [id], EVERY);
  return (
    <>
      <Panel title={actor.data?.display_name ?? actor.data?.full_name ?? `Actor ${id}`}>
        <Problem error={actor.error} at={actor.at} />
        {actor.data && <Facts values={{ ...actor.data }} />}
      </Panel>
      <Panel title="Status over time">
        <Problem error={events.error} at={events.at} />
        {events.data && <Statuses events={events.data} />}
      </Panel>
      <Messages id={id} direction="in" />
      <Messages id={id} direction="out" />
      <ProcessStacks id={id} />
    </>
  );
}

function Statuses({ events }: { events: StatusEvent[] }) {
  const spans = spansOf(events, client.serverNow());
  const first = spans[0]?.start_us ?? 0;
  const whole = Math.max(1, (spans.at(-1)?.end_us ?? 0) - first);
  const columns: Column<(typeof spans)[number]>[] = [
    { title: "Since", cell: (span) => moment(span.start_us), width: "11rem" },
    { title: "Status", cell: (span) => <Status status={span.status} /> },
    { title: "For", cell: (span) => duration(span.end_us - span.start_us), number: true },
    { title: "Reason", cell: (span) => span.reason ?? "", width: "minmax(10rem, 3fr)" },
  ];
  return (
    <>
      <svg class="strip" viewBox="0 0 1000 14" preserveAspectRatio="none" role="img" aria-label={`${spans.length} statuses in ${duration(whole)}`}>
        {spans.map((span) => (
          <rect
            class={`fill-${statusClass(span.status)}`}
            x={((span.start_us - first) / whole) * 1000}
            width={Math.max(1, ((span.end_us - span.start_us) / whole) * 1000)}
            height="14"
          >
            <title>{`${span.status} for ${duration(span.end_us - span.start_us)}`}</title>
          </rect>
        ))}
      </svg>
      <Table label="statuses" class="short" columns={columns} rows={[...spans].reverse()} empty="No status is kept." />
    </>
  );
}

function Messages({ id, direction }: { id: string; direction: "in" | "out" }) {
  const list = useLive((signal) => client.messages(direction === "in" ? { to_actor_id: id } : { from_actor_id: id }, signal), [id, direction], EVERY);
  const columns: Column<Message>[] = [
    { title: "Time", cell: (message) => clock(message.timestamp_us) },
    { title: "Endpoint", cell: (message) => message.endpoint ?? `port ${message.port_index ?? ""}` },
    { title: direction === "in" ? "From" : "To", cell: (message) => <ActorLink id={direction === "in" ? message.from_actor_id : message.to_actor_id} /> },
  ];
  return (
    <Panel title={direction === "in" ? "Messages received" : "Messages sent"}>
      <Problem error={list.error} at={list.at} />
      <Table label={`messages ${direction}`} class="short" columns={columns} rows={list.data ?? []} empty="No message is kept." />
    </Panel>
  );
}

function ActorLink({ id }: { id: string }) {
  return <Link to={href("explorer", ["actor", id])}>{id}</Link>;
}

function ProcessStacks({ id }: { id: string }) {
  const [asked, setAsked] = useState(0);
  const stacks = useLive(async (signal) => (asked === 0 ? null : (await client.query(stacksOfActor(id), signal)).rows), [id, asked]);
  return (
    <Panel title="Stacks of its process">
      <button type="button" onClick={() => setAsked(asked + 1)}>
        Read stacks now
      </button>
      <Problem error={stacks.error} />
      {stacks.data && <Threads rows={stacks.data} />}
    </Panel>
  );
}

export function stacksOfActor(id: string): string {
  return `SELECT CAST(s.thread_id AS VARCHAR) AS thread_id, s.thread_name, s.owns_gil, s.frame_depth, s.name, s.filename, s.line
FROM stacks() s JOIN live_actors() l ON l.proc_id = s.proc_id WHERE l.actor_id = ${idLiteral(id)} ORDER BY s.thread_id, s.frame_depth`;
}

/** Frames grouped by thread, the innermost call first. */
export function Threads({ rows }: { rows: readonly Row[] }) {
  const threads = new Map<string, Row[]>();
  for (const row of rows) {
    const key = cell(row["thread_id"]);
    threads.set(key, [...(threads.get(key) ?? []), row]);
  }
  if (threads.size === 0) return <p class="empty">The process is not there any more, or has no stack.</p>;
  return (
    <>
      {[...threads].map(([key, frames]) => (
        <details key={key} open>
          <summary>
            {cell(frames[0]?.["thread_name"]) || `thread ${key}`} {frames[0]?.["owns_gil"] === true && <b>holds the GIL</b>}
          </summary>
          <ol class="frames">
            {frames.map((frame) => (
              <li>
                {cell(frame["name"])} <span class="dim">{`${cell(frame["filename"])}:${cell(frame["line"])}`}</span>
              </li>
            ))}
          </ol>
        </details>
      ))}
    </>
  );
}
