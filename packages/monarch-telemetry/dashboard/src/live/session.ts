/** What all pages share: the client, the stream of events, and which hosts are silent. */

import { Client } from "../api/client";
import { read, type ServerEvent } from "../api/events";
import * as tokens from "../api/token";
import { Freshness, type Silent } from "./freshness";
import { Observable } from "./observable";

export type Stream = "connecting" | "live" | "paused" | "offline";

const FIRST_RETRY_MS = 1000;
const LAST_RETRY_MS = 30_000;

export const token = new Observable<string | null>(null);
export const unauthorized = new Observable(false);
export const silent = new Observable<readonly Silent[]>([]);
export const stream = new Observable<Stream>("connecting");

const freshness = new Freshness();
const answered = new Observable(false);
const listeners = new Set<(event: ServerEvent) => void>();

export const client = new Client({
  token: () => token.get(),
  onCoverage: (coverage, now) => silent.set(freshness.note(coverage, now)),
  onUnauthorized: () => unauthorized.set(true),
  onAnswer: () => answered.set(true),
});

export function onEvent(listener: (event: ServerEvent) => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function useToken(text: string): void {
  tokens.keep(text, sessionStorage);
  token.set(text);
  unauthorized.set(false);
}

/** Connects while the tab is visible and a token is accepted, after the first page has its first answer; waits longer after each failure. */
export function startStream(): void {
  let open: AbortController | null = null;
  let retry = FIRST_RETRY_MS;
  let timer: ReturnType<typeof setTimeout> | undefined;

  async function connect(): Promise<void> {
    const controller = new AbortController();
    open = controller;
    stream.set("connecting");
    try {
      const response = await client.events(controller.signal);
      stream.set("live");
      retry = FIRST_RETRY_MS;
      await read(response, (event) => {
        for (const listener of [...listeners]) listener(event);
      });
    } catch {
      // The state says that the stream is off; pages go on with their own requests.
    }
    if (controller.signal.aborted) return;
    stream.set("offline");
    open = null;
    timer = setTimeout(update, retry);
    retry = Math.min(retry * 2, LAST_RETRY_MS);
  }

  function update(): void {
    clearTimeout(timer);
    const wanted = !document.hidden && !unauthorized.get() && answered.get();
    if (wanted && open === null) void connect();
    if (!wanted && open !== null) {
      open.abort();
      open = null;
    }
    if (!wanted) stream.set(answered.get() ? "paused" : "connecting");
  }

  document.addEventListener("visibilitychange", update);
  unauthorized.subscribe(update);
  answered.subscribe(update);
  update();
}
