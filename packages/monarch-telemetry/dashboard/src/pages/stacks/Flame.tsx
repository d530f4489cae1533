/** The flame graph: a click or Enter widens a frame. */

import { useEffect, useState } from "preact/hooks";
import { plural } from "../../text/format";
import { type Frame, focus } from "./flame";

const HEIGHT = 18;
const WIDTH = 1000;
const HUES = 6;

export function Flame({ frames }: { frames: readonly Frame[] }) {
  const [chosen, setChosen] = useState("");
  const [cursor, setCursor] = useState(0);
  useEffect(() => setChosen(""), [frames]);
  const shown = focus(frames, chosen);
  const depth = shown.reduce((most, frame) => Math.max(most, frame.depth), 0) + 1;
  const current = shown[Math.min(cursor, shown.length - 1)];

  function key(event: KeyboardEvent): void {
    if (current === undefined) return;
    const move = { ArrowLeft: beside(shown, current, -1), ArrowRight: beside(shown, current, 1), ArrowUp: above(shown, current), ArrowDown: below(shown, current) }[event.key];
    if (event.key === "Enter") setChosen(current.key);
    else if (event.key === "Escape") setChosen("");
    else if (move === undefined) return;
    else if (move >= 0) setCursor(move);
    event.preventDefault();
  }
  if (frames.length === 0) return <p class="empty">No stack.</p>;
  return (
    <>
      <svg
        class="flame"
        viewBox={`0 0 ${WIDTH} ${depth * HEIGHT}`}
        preserveAspectRatio="none"
        height={depth * HEIGHT}
        tabindex={0}
        role="application"
        aria-label="flame graph; arrow keys select a frame, Enter widens it, Escape shows all"
        onKeyDown={key}
      >
        {shown.map((frame, index) => (
          <rect
            key={frame.key}
            class={`hue${hue(frame.name)} ${frame === current ? "selected" : ""}`}
            x={frame.x * WIDTH}
            y={frame.depth * HEIGHT}
            width={Math.max(0.3, frame.width * WIDTH - 0.5)}
            height={HEIGHT - 1}
            onClick={() => (setCursor(index), setChosen(frame.key))}
          >
            <title>{describe(frame)}</title>
          </rect>
        ))}
      </svg>
      <div class="flame-labels" style={{ height: `${depth * HEIGHT}px`, marginTop: `-${depth * HEIGHT}px` }} aria-hidden="true">
        {shown.map((frame) =>
          frame.width < 0.03 ? null : (
            <span key={frame.key} style={{ left: `${frame.x * 100}%`, width: `${frame.width * 100}%`, top: `${frame.depth * HEIGHT}px` }}>
              {frame.name}
            </span>
          ),
        )}
      </div>
      <p role="status" class="dim">
        {current && describe(current)}
        {chosen !== "" && (
          <button type="button" class="link" onClick={() => setChosen("")}>
            Show all
          </button>
        )}
      </p>
    </>
  );
}

function describe(frame: Frame): string {
  return `${frame.name} ${frame.place === "" ? "" : `(${frame.place})`}: ${plural(frame.threads, "thread")}`;
}

function hue(name: string): number {
  let sum = 0;
  for (const letter of name) sum = (sum * 31 + letter.codePointAt(0)!) % 997;
  return sum % HUES;
}

function beside(frames: readonly Frame[], current: Frame, direction: 1 | -1): number {
  const row = frames.filter((frame) => frame.depth === current.depth).sort((a, b) => a.x - b.x);
  const next = row[row.indexOf(current) + direction];
  return next === undefined ? -1 : frames.indexOf(next);
}

function above(frames: readonly Frame[], current: Frame): number {
  return frames.findIndex((frame) => frame.depth === current.depth - 1 && frame.x <= current.x + 1e-9 && frame.x + frame.width >= current.x + current.width - 1e-9);
}

function below(frames: readonly Frame[], current: Frame): number {
  return frames.findIndex((frame) => frame.depth === current.depth + 1 && frame.x >= current.x - 1e-9 && frame.x < current.x + current.width - 1e-9);
}
