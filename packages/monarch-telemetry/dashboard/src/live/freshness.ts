/** Hosts that do not answer, and since when: from the coverage of each answer. */

import type { Coverage } from "../api/types";

export interface Silent {
  host: string;
  reason: string;
  /** Local milliseconds of the last answer that had the host; null where none had it since this page was opened. */
  answered: number | null;
}

export class Freshness {
  private silent: readonly Silent[] = [];
  private last: number | null = null;

  /** Takes in an answer; the same list as before where nothing changed. */
  note(coverage: Coverage, now: number): readonly Silent[] {
    // An answer of no host, such as of the catalog, has no news of any.
    if (coverage.hosts_asked === 0) return this.silent;
    const before = new Map(this.silent.map((silent) => [silent.host, silent]));
    const after = coverage.missing.map(({ host, reason }) => {
      const known = before.get(host);
      return known !== undefined && known.reason === reason ? known : { host, reason, answered: known ? known.answered : this.last };
    });
    // A host that is not in the list answered at this moment.
    this.last = now;
    if (after.length !== this.silent.length || after.some((silent, index) => silent !== this.silent[index])) this.silent = after;
    return this.silent;
  }
}
