/** Stable URLs: `/PAGE/REST?QUERY`. The fragment is the token's. */

import { useEffect, useState } from "preact/hooks";

export const PAGES = ["overview", "topology", "explorer", "logs", "metrics", "sql", "diagnose", "stacks", "timeline", "audit"] as const;
export type Page = (typeof PAGES)[number];
/** `/metrics` is the route of Prometheus on the same server. */
const SEGMENTS: Partial<Record<Page, string>> = { metrics: "charts" };
export type Query = Record<string, string>;

export interface Route {
  page: Page | null;
  /** The parts of the path behind the page, decoded. */
  rest: string[];
  query: Query;
}

/** The route of a URL; the page is null where there is none of this name. */
export function parse(pathname: string, search: string): Route {
  const parts = pathname.split("/").filter((part) => part !== "").map(decode);
  const [first = "overview", ...rest] = parts;
  const page = PAGES.find((name) => segment(name) === first) ?? null;
  return { page, rest, query: Object.fromEntries(new URLSearchParams(search)) };
}

function segment(page: Page): string {
  return SEGMENTS[page] ?? page;
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** The URL of a page; parameters that are empty are left out. */
export function href(page: Page, rest: readonly string[] = [], query: Record<string, string | null | undefined> = {}): string {
  const path = [page === "overview" && rest.length === 0 ? "" : segment(page), ...rest].map(encodeURIComponent).join("/");
  const present = Object.entries(query).filter((pair): pair is [string, string] => pair[1] != null && pair[1] !== "");
  const search = new URLSearchParams(present).toString();
  return `/${path}${search === "" ? "" : `?${search}`}`;
}

const listeners = new Set<() => void>();

export function navigate(url: string, options: { replace?: boolean } = {}): void {
  if (options.replace === true) history.replaceState(null, "", url);
  else history.pushState(null, "", url);
  for (const listener of [...listeners]) listener();
}

export function useRoute(): Route {
  const [route, setRoute] = useState(() => parse(location.pathname, location.search));
  useEffect(() => {
    const update = () => setRoute(parse(location.pathname, location.search));
    listeners.add(update);
    addEventListener("popstate", update);
    return () => {
      listeners.delete(update);
      removeEventListener("popstate", update);
    };
  }, []);
  return route;
}

/** Changes parameters of the current page, without a new entry in the history. */
export function setQuery(route: Route, change: Record<string, string | null>): void {
  if (route.page !== null) navigate(href(route.page, route.rest, { ...route.query, ...change }), { replace: true });
}
