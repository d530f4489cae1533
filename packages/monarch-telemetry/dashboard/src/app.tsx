/** The frame around the pages: navigation, state of the data, theme, keys. */

import type { FunctionComponent } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { useObservable } from "./live/observable";
import { silent, stream, unauthorized, useToken } from "./live/session";
import { href, navigate, type Page, PAGES, type Route, useRoute } from "./router";
import { Link, SilentHosts } from "./parts/State";
import { Overview } from "./pages/overview/Overview";
import { chooseTheme, type Theme, theme } from "./theme";

export type PageComponent = FunctionComponent<{ route: Route }>;

const TITLES: Record<Page, string> = {
  overview: "Overview",
  topology: "Topology",
  explorer: "Explorer",
  logs: "Logs",
  metrics: "Metrics",
  sql: "SQL",
  diagnose: "Diagnose",
  stacks: "Stacks",
  timeline: "Timeline",
  audit: "Audit",
};

/** The first page is in the first file; each other one is loaded when it is opened. */
const LOADERS: Record<Exclude<Page, "overview">, () => Promise<PageComponent>> = {
  topology: async () => (await import("./pages/topology/Topology")).Topology,
  explorer: async () => (await import("./pages/explorer/Explorer")).Explorer,
  logs: async () => (await import("./pages/logs/Logs")).Logs,
  metrics: async () => (await import("./pages/metrics/Metrics")).Metrics,
  sql: async () => (await import("./pages/sql/Sql")).Sql,
  diagnose: async () => (await import("./pages/diagnose/Diagnose")).Diagnose,
  stacks: async () => (await import("./pages/stacks/Stacks")).Stacks,
  timeline: async () => (await import("./pages/timeline/Timeline")).Timeline,
  audit: async () => (await import("./pages/audit/Audit")).Audit,
};

const KEYS: Record<string, Page> = { o: "overview", t: "topology", e: "explorer", l: "logs", m: "metrics", s: "sql", d: "diagnose", k: "stacks", i: "timeline", a: "audit" };
const NEXT: Record<Theme, Theme> = { system: "dark", dark: "light", light: "system" };

export function App() {
  const route = useRoute();
  const hosts = useObservable(silent);
  const state = useObservable(stream);
  const chosen = useObservable(theme);
  const refused = useObservable(unauthorized);
  const help = useRef<HTMLDialogElement>(null);
  useKeys(() => help.current?.showModal());

  useEffect(() => {
    document.title = route.page === null ? "Monarch" : `${TITLES[route.page]} · Monarch`;
  }, [route.page]);

  return (
    <>
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), document.getElementById("main")?.focus())}>
        Skip to the page
      </a>
      <header>
        <strong>Monarch</strong>
        <nav aria-label="Pages">
          {PAGES.map((page) => (
            <Link to={href(page)} aria-current={page === route.page ? "page" : undefined}>
              {TITLES[page]}
            </Link>
          ))}
        </nav>
        <span class={`stream ${state}`} role="status">
          {state}
        </span>
        <button type="button" onClick={() => chooseTheme(NEXT[chosen])} aria-label={`Colors: ${chosen}. Change.`}>
          {chosen}
        </button>
        <button type="button" onClick={() => help.current?.showModal()} aria-label="Keys">
          ?
        </button>
      </header>
      <SilentHosts hosts={hosts} />
      <main id="main" tabIndex={-1}>
        {refused ? <TokenForm /> : <CurrentPage route={route} />}
      </main>
      <dialog ref={help} aria-label="Keys">
        <h2>Keys</h2>
        <dl class="facts">
          {Object.entries(KEYS).map(([key, page]) => (
            <>
              <dt>
                <kbd>g</kbd> <kbd>{key}</kbd>
              </dt>
              <dd>{TITLES[page]}</dd>
            </>
          ))}
          <dt>
            <kbd>/</kbd>
          </dt>
          <dd>search on this page</dd>
          <dt>
            <kbd>↑</kbd> <kbd>↓</kbd> <kbd>Enter</kbd>
          </dt>
          <dd>select and open in lists and trees; ← and → close and open a branch</dd>
        </dl>
        <form method="dialog">
          <button>Close</button>
        </form>
      </dialog>
    </>
  );
}

function CurrentPage({ route }: { route: Route }) {
  const { page } = route;
  const [loaded, setLoaded] = useState<{ page: Page; component: PageComponent } | null>(null);
  const [error, setError] = useState<Error | null>(null);
  useEffect(() => {
    if (page === null || page === "overview") return;
    let current = true;
    setError(null);
    LOADERS[page]().then(
      (component) => current && setLoaded({ page, component }),
      (problem: Error) => current && setError(problem),
    );
    return () => {
      current = false;
    };
  }, [page]);

  if (page === "overview") return <Overview route={route} />;
  if (page === null) return <p class="problem">There is no page with this name.</p>;
  if (error !== null) return <p class="problem">The page could not be loaded: {error.message}</p>;
  if (loaded?.page !== page) return null;
  const Component = loaded.component;
  return <Component key={page} route={route} />;
}

function TokenForm() {
  const input = useRef<HTMLInputElement>(null);
  return (
    <form
      class="panel token"
      onSubmit={(event) => {
        event.preventDefault();
        if (input.current?.value) useToken(input.current.value.trim());
      }}
    >
      <h1>A token is needed</h1>
      <p>
        Open the dashboard by its whole URL, which <code>monarch dashboard</code> prints, or enter the token. It stays in this tab.
      </p>
      <label>
        Token <input ref={input} type="password" autocomplete="off" required />
      </label>
      <button>Open</button>
    </form>
  );
}

/** `g` and a letter open a page, `/` goes to the search of the page, `?` shows the keys. */
function useKeys(showHelp: () => void): void {
  useEffect(() => {
    let prefix = false;
    function press(event: KeyboardEvent): void {
      const target = event.target as HTMLElement;
      const typing = target.matches("input, textarea, select");
      if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
      const page = prefix ? KEYS[event.key] : undefined;
      prefix = event.key === "g" && !prefix;
      if (page !== undefined) navigate(href(page));
      else if (event.key === "?") showHelp();
      else if (event.key === "/") document.querySelector<HTMLElement>("[data-search]")?.focus();
      else return;
      event.preventDefault();
    }
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
}
