/** The drawing of tracks: the wheel or plus and minus zoom, dragging or arrow keys move. */

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { useObservable } from "../../live/observable";
import { color, repaint } from "../../theme";
import { clock, duration } from "../../text/format";
import { visible } from "../../text/visible";
import type { SpanRow, Track } from "./spans";

const LANE = 16;
const GAP = 8;
const LABELS = 190;
const AXIS = 22;
const COLORS = 8;

export interface Shown {
  from_us: number;
  to_us: number;
}

interface Properties {
  tracks: readonly Track[];
  range: Shown;
  selected: SpanRow | null;
  onSelect: (span: SpanRow) => void;
}

export function Canvas({ tracks, range, selected, onSelect }: Properties) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(900);
  const [view, setView] = useState<Shown>(range);
  const painted = useObservable(repaint);
  const drag = useRef<{ x: number; view: Shown; moved: boolean } | null>(null);
  const height = AXIS + tracks.reduce((sum, track) => sum + track.lanes * LANE + GAP, 0);
  useEffect(() => setView(range), [range.from_us, range.to_us]);
  useEffect(() => {
    const element = canvas.current?.parentElement;
    if (element == null) return;
    const observer = new ResizeObserver(() => setWidth(element.clientWidth));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);

  const toX = (us: number) => LABELS + ((us - view.from_us) / (view.to_us - view.from_us)) * (width - LABELS);
  const toTime = (x: number) => view.from_us + ((x - LABELS) / Math.max(1, width - LABELS)) * (view.to_us - view.from_us);

  useLayoutEffect(() => {
    const element = canvas.current;
    const context = element?.getContext("2d");
    if (element == null || context == null) return;
    const ratio = devicePixelRatio || 1;
    element.width = width * ratio;
    element.height = height * ratio;
    context.scale(ratio, ratio);
    context.font = "11px sans-serif";
    context.textBaseline = "middle";
    const [text, dim, line] = [color("text"), color("dim"), color("line")];
    const colors = Array.from({ length: COLORS }, (_, index) => color(`series${index}`));
    axis(context, view, width, height, dim, line);
    let top = AXIS;
    let label = "";
    for (const track of tracks) {
      context.fillStyle = text;
      if (track.label !== label) context.fillText(visible(track.label), 4, top + LANE / 2, LABELS - 8);
      else {
        context.fillStyle = dim;
        context.fillText(visible(track.thread), 14, top + LANE / 2, LABELS - 18);
      }
      label = track.label;
      context.save();
      context.beginPath();
      context.rect(LABELS, 0, width - LABELS, height);
      context.clip();
      for (const { span, lane } of track.spans) {
        const [left, right] = [toX(span.start_us), toX(span.end_us ?? range.to_us)];
        if (right < LABELS || left > width) continue;
        const [y, w] = [top + lane * LANE, Math.max(1, right - left)];
        context.fillStyle = colors[hash(span.name) % COLORS]!;
        context.globalAlpha = span.end_us === null ? 0.5 : 0.85;
        context.fillRect(left, y, w, LANE - 2);
        context.globalAlpha = 1;
        if (span === selected) {
          context.strokeStyle = text;
          context.lineWidth = 2;
          context.strokeRect(left, y, w, LANE - 2);
        }
        if (w > 30) {
          context.fillStyle = "#fff";
          context.fillText(fit(context, visible(span.name), w - 6), Math.max(left, LABELS) + 3, y + LANE / 2 - 1);
        }
      }
      context.restore();
      top += track.lanes * LANE + GAP;
    }
  }, [tracks, view, width, height, selected, painted]);

  function change(next: Shown): void {
    if (next.to_us - next.from_us >= 10) setView(next);
  }
  function zoom(factor: number, around: number): void {
    change({ from_us: around - (around - view.from_us) * factor, to_us: around + (view.to_us - around) * factor });
  }
  function hit(event: MouseEvent): SpanRow | null {
    const box = canvas.current!.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    let top = AXIS;
    for (const track of tracks) {
      const lane = Math.floor((y - top) / LANE);
      if (lane >= 0 && lane < track.lanes) {
        const found = track.spans.find((placed) => placed.lane === lane && toX(placed.span.start_us) - 1 <= x && Math.max(toX(placed.span.end_us ?? range.to_us), toX(placed.span.start_us) + 2) >= x);
        return found?.span ?? null;
      }
      top += track.lanes * LANE + GAP;
    }
    return null;
  }
  return (
    <canvas
      ref={canvas}
      class="timeline"
      style={{ height: `${height}px` }}
      tabIndex={0}
      role="img"
      aria-label={`timeline of ${tracks.length} threads from ${clock(view.from_us)} for ${duration(view.to_us - view.from_us)}; the table below has the same spans`}
      onWheel={(event) => {
        if (!event.ctrlKey && !event.shiftKey) return;
        event.preventDefault();
        zoom(event.deltaY > 0 ? 1.25 : 0.8, toTime(event.clientX - canvas.current!.getBoundingClientRect().left));
      }}
      onPointerDown={(event) => {
        drag.current = { x: event.clientX, view, moved: false };
      }}
      onPointerMove={(event) => {
        const from = drag.current;
        if (from === null || event.buttons === 0) return;
        const by = ((event.clientX - from.x) / (width - LABELS)) * (from.view.to_us - from.view.from_us);
        if (Math.abs(event.clientX - from.x) > 3) from.moved = true;
        if (from.moved) change({ from_us: from.view.from_us - by, to_us: from.view.to_us - by });
      }}
      onPointerUp={(event) => {
        const span = drag.current?.moved === false ? hit(event) : null;
        drag.current = null;
        if (span !== null) onSelect(span);
      }}
      onKeyDown={(event) => {
        const [middle, tenth] = [(view.from_us + view.to_us) / 2, (view.to_us - view.from_us) / 10];
        if (event.key === "+" || event.key === "=") zoom(0.7, middle);
        else if (event.key === "-") zoom(1.4, middle);
        else if (event.key === "ArrowLeft") change({ from_us: view.from_us - tenth, to_us: view.to_us - tenth });
        else if (event.key === "ArrowRight") change({ from_us: view.from_us + tenth, to_us: view.to_us + tenth });
        else if (event.key === "0") setView(range);
        else return;
        event.preventDefault();
      }}
    />
  );
}

function axis(context: CanvasRenderingContext2D, view: Shown, width: number, height: number, dim: string, line: string): void {
  const step = niceStep((view.to_us - view.from_us) / 7);
  for (let us = Math.ceil(view.from_us / step) * step; us < view.to_us; us += step) {
    const x = LABELS + ((us - view.from_us) / (view.to_us - view.from_us)) * (width - LABELS);
    context.fillStyle = line;
    context.fillRect(x, AXIS - 4, 1, height);
    context.fillStyle = dim;
    context.fillText(step >= 1e6 ? clock(us).slice(0, 8) : `+${duration(us - view.from_us)}`, x + 3, AXIS / 2);
  }
}

/** 1, 2 or 5 times a power of ten. */
export function niceStep(wanted: number): number {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, wanted)));
  return power * ([1, 2, 5].find((factor) => factor * power >= wanted) ?? 10);
}

function fit(context: CanvasRenderingContext2D, text: string, width: number): string {
  const letters = Math.floor(width / (context.measureText("n").width || 6));
  return text.length > letters ? `${text.slice(0, Math.max(0, letters - 1))}…` : text;
}

function hash(text: string): number {
  let sum = 0;
  for (const letter of text) sum = (sum * 31 + letter.codePointAt(0)!) % 9973;
  return sum;
}
