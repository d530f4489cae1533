/** The causes of what is wrong with the job. The job is asked when the page opens and by the button, and never else. */

import type { Cause, Diagnosis } from "../../api/types";
import { client } from "../../live/session";
import { useLive } from "../../live/useLive";
import { Panel } from "../../parts/Panel";
import { Problem } from "../../parts/State";
import { moment } from "../../text/format";
import { headline, listed, lookedAt } from "./sentences";

const MOST_CAUSES = 20;

export function Diagnose() {
  const diagnosis = useLive((signal) => client.diagnose(signal), [], { keep: true });
  return (
    <div class="page">
      <h1>Diagnose</h1>
      <div class="filters">
        <button type="button" class="main" onClick={diagnosis.reload}>
          Look again
        </button>
        <span class="dim" role="status">
          {diagnosis.data === null ? (diagnosis.loading ? "looking at all processes" : "") : `looked at ${moment(diagnosis.at * 1000).slice(11)}`}
        </span>
      </div>
      <Problem error={diagnosis.error} at={diagnosis.at} />
      {diagnosis.data && <Found diagnosis={diagnosis.data} />}
    </div>
  );
}

function Found({ diagnosis }: { diagnosis: Diagnosis }) {
  const { causes } = diagnosis;
  return (
    <>
      <Panel title={headline(diagnosis)}>
        {causes.length > 0 && (
          <ol class="causes">
            {causes.slice(0, MOST_CAUSES).map((cause) => (
              <CauseItem cause={cause} />
            ))}
          </ol>
        )}
        {causes.length > MOST_CAUSES && <p class="dim">and {causes.length - MOST_CAUSES} more</p>}
        {causes.length === 0 && diagnosis.busy.map((one) => <p class="dim">longest: {one}</p>)}
      </Panel>
      <Panel title="What was looked at">
        <dl class="facts">
          {lookedAt(diagnosis).map(([name, text]) => (
            <>
              <dt>{name}</dt>
              <dd>{text}</dd>
            </>
          ))}
        </dl>
        {diagnosis.missing.map((one) => (
          <p class="problem">no answer: {one}</p>
        ))}
        {diagnosis.left_out.map(({ name, reason }) => (
          <p class="problem">
            left out: detector {name}: {reason}
          </p>
        ))}
      </Panel>
    </>
  );
}

function CauseItem({ cause }: { cause: Cause }) {
  return (
    <li>
      <b>{cause.sentence}</b> <span class="kind">{cause.detector}</span>
      <dl class="facts">
        {cause.facts.map(({ text, source }) => (
          <>
            <dt>{source}</dt>
            <dd>{text}</dd>
          </>
        ))}
        {cause.waiting.length > 0 && (
          <>
            <dt>waits for it</dt>
            <dd>{listed(cause.waiting)}</dd>
          </>
        )}
        {cause.consequences.map((one) => (
          <>
            <dt>consequence</dt>
            <dd>{one}</dd>
          </>
        ))}
        {cause.command !== "" && (
          <>
            <dt>next</dt>
            <dd>
              <code>{cause.command}</code>
            </dd>
          </>
        )}
      </dl>
    </li>
  );
}
