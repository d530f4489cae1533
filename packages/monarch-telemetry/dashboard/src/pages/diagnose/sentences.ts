/** The sentences of a diagnosis that are not the server's. */

import type { Diagnosis } from "../../api/types";
import { plural } from "../../text/format";

const MOST_NAMES = 12;

/** Without processes only the past was looked at. */
export function headline({ causes, procs }: Diagnosis): string {
  if (causes.length > 0) return plural(causes.length, "cause");
  return procs > 0 ? "Nothing is wrong" : "No cause was found, and no process could be looked at";
}

export function listed(names: readonly string[]): string {
  const more = names.length - MOST_NAMES;
  return names.slice(0, MOST_NAMES).join(", ") + (more > 0 ? ` and ${more} more` : "");
}

/** Names and texts of what was looked at. */
export function lookedAt(diagnosis: Diagnosis): [string, string][] {
  return [
    ["healthy", `${diagnosis.healthy_procs} of ${plural(diagnosis.procs, "proc")}`],
    ["answered", `${diagnosis.answered_hosts} of ${plural(diagnosis.hosts, "host")}, coverage ${Math.floor(diagnosis.coverage * 100)} %`],
    ["sources", diagnosis.sources.join(", ")],
    ["detectors", diagnosis.detectors.join(", ")],
  ];
}
