/** A chart over time (uPlot), drawn again when the data, the size or the colors change. */

import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { useObservable } from "../live/observable";
import { clock } from "../text/format";
import { color, repaint } from "../theme";

export interface Series {
  label: string;
  values: readonly (number | null)[];
}

interface Properties {
  label: string;
  /** Microseconds since the epoch, ascending. */
  times: readonly number[];
  series: readonly Series[];
  format: (value: number) => string;
  height?: number;
  bars?: boolean;
  /** The user chose a part of the time. */
  onRange?: (from_us: number, to_us: number) => void;
}

export const COLORS = 8;

export function Chart({ label, times, series, format, height = 220, bars = false, onRange }: Properties) {
  const place = useRef<HTMLDivElement>(null);
  const painted = useObservable(repaint);
  const range = useRef(onRange);
  range.current = onRange;

  useEffect(() => {
    const element = place.current;
    if (element === null) return;
    const colors = Array.from({ length: COLORS }, (_, index) => color(`series${index}`));
    const axis = { stroke: color("dim"), grid: { stroke: color("line"), width: 1 }, ticks: { stroke: color("line") }, font: "11px sans-serif" };
    const paths = bars ? uPlot.paths.bars?.({ size: [0.9, 60] }) : undefined;
    const chart = new uPlot(
      {
        width: Math.max(120, element.clientWidth),
        height,
        cursor: { drag: { x: true, y: false, setScale: false } },
        legend: { show: series.length > 1, live: true },
        axes: [{ ...axis, values: (_chart, ticks) => labels(ticks) }, { ...axis, size: 64, values: (_chart, ticks) => ticks.map(format) }],
        scales: { y: { range: (_chart, low, high) => [Math.min(0, low ?? 0), (high ?? 1) <= 0 ? 1 : (high ?? 1) * 1.05] } },
        series: [
          {},
          ...series.map((one, index) => ({
            label: one.label,
            stroke: colors[index % COLORS]!,
            width: 1.5,
            ...(bars ? { fill: colors[index % COLORS]!, paths: paths! } : { spanGaps: false }),
            value: (_chart: uPlot, value: number | null) => (value == null ? "" : format(value)),
            points: { show: times.length < 3 },
          })),
        ],
        hooks: {
          setSelect: [
            (drawn) => {
              const { left, width } = drawn.select;
              if (width < 4) return;
              range.current?.(drawn.posToVal(left, "x") * 1e6, drawn.posToVal(left + width, "x") * 1e6);
              drawn.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
            },
          ],
        },
      },
      [times.map((time) => time / 1e6), ...series.map((one) => [...one.values])],
      element,
    );
    const observer = new ResizeObserver(() => chart.setSize({ width: Math.max(120, element.clientWidth), height }));
    observer.observe(element);
    return () => {
      observer.disconnect();
      chart.destroy();
    };
  }, [times, series, height, bars, painted]);

  const last = series.map((one) => `${one.label} ${text(one.values, format)}`).join(", ");
  return <div ref={place} class="chart" role="img" aria-label={`${label}: ${times.length === 0 ? "no data" : last}`} />;
}

/** The time of day of the marks, with seconds where marks differ by less than a minute. */
function labels(ticks: readonly number[]): string[] {
  const close = ticks.length > 1 && ticks[1]! - ticks[0]! < 60;
  return ticks.map((tick) => clock(tick * 1e6).slice(0, close ? 8 : 5));
}

function text(values: readonly (number | null)[], format: (value: number) => string): string {
  const value = [...values].reverse().find((one) => one !== null);
  return value == null ? "no data" : format(value);
}
