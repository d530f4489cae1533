/** Parts of a whole as a ring, with a legend. */

import { count } from "../text/format";
import { statusClass } from "../text/status";

const RADIUS = 40;
const LENGTH = 2 * Math.PI * RADIUS;

export function Donut({ counts, label }: { counts: Record<string, number>; label: string }) {
  const parts = Object.entries(counts).sort((a, b) => b[1] - a[1]);
  const total = parts.reduce((sum, [, value]) => sum + value, 0);
  let start = 0;
  const arcs = parts.map(([name, value]) => {
    const length = total === 0 ? 0 : (value / total) * LENGTH;
    const arc = (
      <circle
        class={`arc ${statusClass(name)}`}
        cx="50"
        cy="50"
        r={RADIUS}
        stroke-dasharray={`${length} ${LENGTH - length}`}
        stroke-dashoffset={-start}
        transform="rotate(-90 50 50)"
      />
    );
    start += length;
    return arc;
  });
  return (
    <div class="donut">
      <svg viewBox="0 0 100 100" role="img" aria-label={`${label}: ${parts.map(([name, value]) => `${value} ${name}`).join(", ")}`}>
        <circle class="arc none" cx="50" cy="50" r={RADIUS} />
        {arcs}
        <text x="50" y="55" text-anchor="middle">
          {count(total)}
        </text>
      </svg>
      <ul>
        {parts.map(([name, value]) => (
          <li>
            <span class={`dot ${statusClass(name)}`} /> {name} <b>{count(value)}</b>
          </li>
        ))}
      </ul>
    </div>
  );
}
