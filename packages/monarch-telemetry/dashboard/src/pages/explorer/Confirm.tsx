/** A button whose action is confirmed first. */

import { useRef, useState } from "preact/hooks";
import type { Action, Row } from "../../api/types";
import { client } from "../../live/session";

interface Properties {
  title: string;
  question: string;
  action: Action;
  body: Row;
}

export function Confirm({ title, question, action, body }: Properties) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [outcome, setOutcome] = useState<{ text: string; bad: boolean } | null>(null);

  async function act(): Promise<void> {
    dialog.current?.close();
    setOutcome({ text: "under way", bad: false });
    try {
      const { done, detail } = await client.action(action, body);
      setOutcome({ text: detail ?? (done ? "done" : "not done"), bad: !done });
    } catch (error) {
      setOutcome({ text: (error as Error).message, bad: true });
    }
  }
  return (
    <>
      <button type="button" class="danger" onClick={() => dialog.current?.showModal()}>
        {title}
      </button>
      <span role="status" class={outcome?.bad ? "bad" : "dim"}>
        {outcome?.text}
      </span>
      <dialog ref={dialog} aria-label={title}>
        <p>{question}</p>
        <p class="dim">The token needs the scope admin. The action is written to the audit.</p>
        <div class="filters">
          <button type="button" autofocus onClick={() => dialog.current?.close()}>
            Cancel
          </button>
          <button type="button" class="danger" onClick={() => void act()}>
            {title}
          </button>
        </div>
      </dialog>
    </>
  );
}
