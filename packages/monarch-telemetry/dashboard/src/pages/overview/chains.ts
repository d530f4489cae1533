/** Failures by their first cause. */

export interface Failure {
  id: string;
  timestamp_us: number;
  kind: string;
  first_cause: boolean;
  cause_id: string | null;
  mesh_name: string;
  rank: number | null;
  host: string | null;
  endpoint: string | null;
  message: string;
}

export interface Chain {
  cause: Failure;
  /** Failures that followed, the earliest first. */
  followed: Failure[];
}

/** Chains with the latest first cause first. A failure whose cause is no longer kept begins a chain. */
export function chains(failures: readonly Failure[]): Chain[] {
  const byId = new Map(failures.map((failure) => [failure.id, failure]));
  const causeOf = (failure: Failure) => (failure.cause_id === null ? undefined : byId.get(failure.cause_id));
  function root(failure: Failure): Failure {
    const path: Failure[] = [];
    let current = failure;
    for (;;) {
      path.push(current);
      const cause = causeOf(current);
      if (cause === undefined) return current;
      const again = path.indexOf(cause);
      // Causes in a circle have no first one; the earliest stands for it.
      if (again !== -1) return path.slice(again).reduce((first, one) => (one.timestamp_us < first.timestamp_us ? one : first));
      current = cause;
    }
  }
  const found = new Map<string, Chain>();
  for (const failure of [...failures].sort((a, b) => a.timestamp_us - b.timestamp_us)) {
    const cause = root(failure);
    const chain = found.get(cause.id) ?? { cause, followed: [] };
    found.set(cause.id, chain);
    if (failure !== cause) chain.followed.push(failure);
  }
  return [...found.values()].sort((a, b) => b.cause.timestamp_us - a.cause.timestamp_us);
}
