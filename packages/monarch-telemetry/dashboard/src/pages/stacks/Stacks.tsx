/** The stacks of all processes, equal ones together, as a list and as a flame graph. */

import { useMemo } from "preact/hooks";
import type { StackReport } from "../../api/types";
import { client } from "../../live/session";
import { useLive } from "../../live/useLive";
import { Field } from "../../parts/Fields";
import { Panel } from "../../parts/Panel";
import { Problem } from "../../parts/State";
import { type Route, setQuery } from "../../router";
import { moment, plural } from "../../text/format";
import { Flame } from "./Flame";
import { flame, placesText } from "./flame";

const MOST_ENTRIES = 200;

export function Stacks({ route }: { route: Route }) {
  const mesh = route.query["mesh"] ?? "";
  const meshes = useLive((signal) => client.meshes(signal), []);
  const report = useLive((signal) => client.stacks(mesh === "" ? null : mesh, signal), [mesh], { keep: true });
  const frames = useMemo(() => flame(report.data?.entries ?? []), [report.data]);
  return (
    <div class="page">
      <h1>Stacks</h1>
      <div class="filters">
        <Field label="Mesh" name="mesh" query={route.query} set={(change) => setQuery(route, change)} search list="stack-meshes" />
        <datalist id="stack-meshes">
          {meshes.data?.map((one) => (
            <option value={one.given_name} />
          ))}
        </datalist>
        <button type="button" class="main" onClick={report.reload}>
          Read again
        </button>
        <span class="dim" role="status">
          {report.data === null ? (report.loading ? "reading the stacks" : "") : `read at ${moment(report.at * 1000).slice(11)}`}
        </span>
      </div>
      <Problem error={report.error} at={report.at} />
      {report.data && (
        <>
          <Panel title="Flame graph">
            <Flame frames={frames} />
          </Panel>
          <Panel title={plural(report.data.entries.length, "different stack")}>
            <Report report={report.data} />
          </Panel>
        </>
      )}
    </div>
  );
}

function Report({ report }: { report: StackReport }) {
  return (
    <>
      {report.missing.map(({ host, reason }) => (
        <p class="problem">
          no stacks of {host}: {reason}
        </p>
      ))}
      {report.unread.map(({ reason, places }) => (
        <p class="problem">
          no stack of {placesText(places)}: {reason}
        </p>
      ))}
      {report.entries.slice(0, MOST_ENTRIES).map((entry, index) => (
        <details key={index} open={index < 5}>
          <summary>
            <b>{plural(entry.procs, "proc")}</b> {entry.thread} in {placesText(entry.places)}
            {entry.threads !== entry.procs && `, ${plural(entry.threads, "thread")}`} {entry.note !== null && <b>{entry.note}</b>}
          </summary>
          <ol class="frames">
            {entry.frames.map((frame) => (
              <li>
                {frame.name} <span class="dim">{frame.line > 0 ? `${frame.filename}:${frame.line}` : frame.filename}</span>
              </li>
            ))}
          </ol>
        </details>
      ))}
      {report.entries.length > MOST_ENTRIES && <p class="dim">and {report.entries.length - MOST_ENTRIES} more stacks of fewer procs</p>}
      {report.idle.length > 0 && <p class="dim">nothing to do in {placesText(report.idle)}</p>}
    </>
  );
}
