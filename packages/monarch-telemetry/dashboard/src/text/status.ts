/** The class of color of a status; the text of the status is always shown too. */

const CLASSES: Record<string, string> = {
  idle: "good",
  ready: "good",
  up: "good",
  complete: "good",
  completed: "good",
  done: "good",
  processing: "busy",
  running: "busy",
  active: "busy",
  client: "neutral",
  queued: "neutral",
  failed: "bad",
  lost: "bad",
  down: "bad",
  refused: "bad",
  error: "bad",
  critical: "bad",
  unresponsive: "bad",
  warning: "warn",
  warn: "warn",
  resuming: "warn",
  stopping: "warn",
  joining: "change",
  created: "change",
  initializing: "change",
  starting: "change",
  stopped: "ended",
  left: "ended",
};

export function statusClass(status: string | null | undefined): string {
  if (status == null) return "unknown";
  // A status may have its reason behind it: `Failed(…)`, `stopped: done`.
  return CLASSES[status.toLowerCase().split(/[^a-z]/)[0] ?? ""] ?? "unknown";
}
