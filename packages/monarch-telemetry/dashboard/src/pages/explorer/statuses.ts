/** Changes of a status as spans of time. */

import type { StatusEvent } from "../../api/types";

export interface StatusSpan {
  status: string;
  reason: string | null;
  start_us: number;
  end_us: number;
}

/** The last status lasts until now; a final one until it began. */
const FINAL = new Set(["Stopped", "Failed"]);

export function spansOf(events: readonly StatusEvent[], now_us: number): StatusSpan[] {
  const sorted = [...events].sort((a, b) => a.timestamp_us - b.timestamp_us);
  return sorted.map((event, index) => {
    const next = sorted[index + 1]?.timestamp_us;
    const end = next ?? (FINAL.has(event.new_status) ? event.timestamp_us : Math.max(now_us, event.timestamp_us));
    return { status: event.new_status, reason: event.reason, start_us: event.timestamp_us, end_us: end };
  });
}
