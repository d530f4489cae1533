/** Loading, errors, coverage and links. */

import type { ComponentChildren } from "preact";
import type { Coverage } from "../api/types";
import { useEffect, useState } from "preact/hooks";
import type { Silent } from "../live/freshness";
import { navigate } from "../router";
import { count, duration, plural } from "../text/format";
import { statusClass } from "../text/status";

export function Problem({ error, at }: { error: Error | null; at?: number }) {
  const now = useNow(error !== null && at !== undefined && at > 0);
  if (error === null || error.name === "AbortError") return null;
  const age = at !== undefined && at > 0 ? ` The data shown is ${duration((now - at) * 1000)} old.` : "";
  return (
    <p class="problem" role="alert">
      {error.message}
      {age}
    </p>
  );
}

export function Status({ status }: { status: string | null | undefined }) {
  return (
    <span class="status">
      <span class={`dot ${statusClass(status)}`} /> {status ?? "unknown"}
    </span>
  );
}

/** A link inside the dashboard. */
export function Link({ to, children, ...rest }: { to: string; children: ComponentChildren; [attribute: string]: unknown }) {
  return (
    <a
      href={to}
      onClick={(event) => {
        if (event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey) return;
        event.preventDefault();
        navigate(to);
      }}
      {...rest}
    >
      {children}
    </a>
  );
}

export function CoverageLine({ coverage }: { coverage: Coverage }) {
  const { hosts_asked, hosts_answered, missing, rows_scanned, elapsed_ms, truncated } = coverage;
  return (
    <div class={missing.length > 0 ? "coverage partial" : "coverage"}>
      {hosts_answered} of {plural(hosts_asked, "host")} answered · {plural(rows_scanned, "row")} scanned · {duration(elapsed_ms * 1000)}
      {truncated && " · truncated"}
      {missing.map(({ host, reason }) => (
        <span class="missing">
          {" "}
          · no answer from {host}: {reason}
        </span>
      ))}
    </div>
  );
}

/** The hosts that do not answer, with the age of what is shown of them. */
export function SilentHosts({ hosts }: { hosts: readonly Silent[] }) {
  const now = useNow(hosts.length > 0);
  if (hosts.length === 0) return null;
  return (
    <div class="silent" role="status">
      <b>{count(hosts.length)}</b> {hosts.length === 1 ? "host does" : "hosts do"} not answer:{" "}
      {hosts.slice(0, 5).map((silent) => (
        <span class="missing">
          {silent.host} ({silent.reason}; data {age(silent, now)})
        </span>
      ))}
      {hosts.length > 5 && ` and ${hosts.length - 5} more`}
    </div>
  );
}

export function age(silent: Silent, now: number): string {
  return silent.answered === null ? "of unknown age" : `${duration(Math.max(0, now - silent.answered) * 1000)} old`;
}

/** Local milliseconds, every second. */
export function useNow(active: boolean): number {
  const [now, setNow] = useState(() => Date.now());
  useEffect(() => {
    if (!active) return;
    setNow(Date.now());
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, [active]);
  return now;
}
