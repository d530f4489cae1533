/** The one typed client of both APIs. */

import { parse } from "./json";
import { Turns } from "./turns";
import type {
  Action,
  ActionAnswer,
  Actor,
  ConfigEntry,
  Coverage,
  Dag,
  Diagnosis,
  Mesh,
  Message,
  MessageActivity,
  MessageStats,
  NodePayload,
  ProfileRequest,
  PyspyAnswer,
  QueryAnswer,
  QueryRequest,
  Row,
  StackReport,
  StatusEvent,
  Summary,
} from "./types";

export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
  ) {
    super(message);
  }
}

export type Fetch = (input: string, init: RequestInit) => Promise<Response>;
type Parameters = Record<string, string | number | boolean | null | undefined>;

export interface Options {
  token: () => string | null;
  fetch?: Fetch;
  /** Each coverage of an answer, and the local time at which it came. */
  onCoverage?: (coverage: Coverage, now: number) => void;
  /** An answer came, whatever is in it. */
  onAnswer?: () => void;
  /** The server refused the token. */
  onUnauthorized?: () => void;
  now?: () => number;
}

/** Messages of an actor that are shown. */
const MESSAGES = 500;
/** Statements of a user that the server runs at a time. */
const TURNS = 2;
/** Shorter differences are the whole seconds of the Date header and the time of the request. */
const CLOCK_TOLERANCE_MS = 2500;

export class Client {
  private readonly fetch: Fetch;
  private readonly now: () => number;
  private readonly turns = new Turns(TURNS);
  private offset = 0;

  constructor(private readonly options: Options) {
    this.fetch = options.fetch ?? ((input, init) => globalThis.fetch(input, init));
    this.now = options.now ?? Date.now;
  }

  /** Microseconds since the epoch by the server's clock. */
  serverNow(): number {
    return (this.now() + this.offset) * 1000;
  }

  summary = (signal?: AbortSignal) => this.get<Summary>("/api/summary", {}, signal);
  messageStats = (signal?: AbortSignal) => this.get<MessageStats>("/api/message-stats", {}, signal);
  messageActivity = (signal?: AbortSignal) => this.get<MessageActivity>("/api/message-activity", {}, signal);
  dag = (mode: "actor" | "mesh", hideSystem: boolean, signal?: AbortSignal) =>
    this.get<Dag>("/api/dag", { mode, hide_system: hideSystem }, signal);
  meshes = (signal?: AbortSignal) => this.list<Mesh>("/api/meshes", {}, signal);
  actors = (meshId: string, signal?: AbortSignal) => this.list<Actor>("/api/actors", { mesh_id: meshId }, signal);
  actor = (id: string, signal?: AbortSignal) => this.get<Actor>(`/api/actors/${encodeURIComponent(id)}`, {}, signal);
  statusEvents = (id: string, signal?: AbortSignal) =>
    this.list<StatusEvent>(`/api/actors/${encodeURIComponent(id)}/status_events`, {}, signal);
  messages = (direction: { from_actor_id: string } | { to_actor_id: string }, signal?: AbortSignal) =>
    this.list<Message>("/api/messages", { ...direction, limit: MESSAGES }, signal);

  root = (signal?: AbortSignal) => this.get<NodePayload>("/v1/root", {}, signal);
  node = (reference: string, signal?: AbortSignal) => this.get<NodePayload>(`/v1/${encodeURIComponent(reference)}`, {}, signal);
  config = (proc: string, signal?: AbortSignal) =>
    this.get<{ entries: ConfigEntry[] }>(`/v1/config/${encodeURIComponent(proc)}`, {}, signal);
  pyspy = (proc: string, signal?: AbortSignal) => this.get<PyspyAnswer>(`/v1/pyspy/${encodeURIComponent(proc)}`, {}, signal);
  stacks = (mesh: string | null, signal?: AbortSignal) => this.get<StackReport>("/v1/stacks", { mesh }, signal);

  diagnose = (signal?: AbortSignal) => this.get<Diagnosis>("/v1/diagnose", {}, signal);

  action(action: Action, body: { target?: string } & Row, signal?: AbortSignal): Promise<ActionAnswer> {
    return this.post<ActionAnswer>(`/v1/actions/${action}`, body, signal);
  }

  async profile(proc: string, request: ProfileRequest, signal?: AbortSignal): Promise<string> {
    const response = await this.request("POST", `/v1/pyspy_profile_svg/${encodeURIComponent(proc)}`, { body: request, signal });
    return response.text();
  }

  async query<R = Row>(sql: string, signal?: AbortSignal, more: Omit<QueryRequest, "sql"> = {}): Promise<QueryAnswer<R>> {
    return this.turns.take(() => this.post<QueryAnswer<R>>("/v1/query", { sql, ...more }, signal), signal);
  }

  /** The rows of all pages of the answer. */
  async queryAll<R = Row>(sql: string, signal?: AbortSignal): Promise<R[]> {
    const rows: R[] = [];
    let cursor: string | null | undefined;
    do {
      const page: QueryAnswer<R> = await this.query<R>(sql, signal, cursor ? { cursor } : {});
      rows.push(...page.rows);
      cursor = page.cursor;
    } while (cursor);
    return rows;
  }

  /** The stream of events; the caller reads and closes the body. */
  events(signal: AbortSignal): Promise<Response> {
    return this.request("GET", "/v1/events", { accept: "text/event-stream", signal });
  }

  private async get<T>(path: string, parameters: Parameters, signal?: AbortSignal): Promise<T> {
    const present = Object.entries(parameters).filter((pair): pair is [string, string | number | boolean] => pair[1] != null);
    const query = new URLSearchParams(present.map(([name, value]) => [name, String(value)])).toString();
    return this.read<T>(await this.request("GET", query === "" ? path : `${path}?${query}`, { signal }));
  }

  private async post<T>(path: string, body: unknown, signal?: AbortSignal): Promise<T> {
    return this.read<T>(await this.request("POST", path, { body, signal }));
  }

  /** A list, or the rows of a page. */
  private async list<T>(path: string, parameters: Parameters, signal?: AbortSignal): Promise<T[]> {
    const answer = await this.get<T[] | { rows: T[] }>(path, parameters, signal);
    return Array.isArray(answer) ? answer : answer.rows;
  }

  private async read<T>(response: Response): Promise<T> {
    const answer = parse(await response.text()) as T;
    const coverage = (answer as { coverage?: Coverage | number } | null)?.coverage;
    // That of a diagnosis is a number.
    if (typeof coverage === "object" && coverage !== null) this.options.onCoverage?.(coverage, this.now());
    return answer;
  }

  private async request(
    method: string,
    path: string,
    options: { body?: unknown; accept?: string; signal?: AbortSignal | undefined },
  ): Promise<Response> {
    const token = this.options.token();
    const headers: Record<string, string> = { Accept: options.accept ?? "application/json" };
    if (token !== null) headers["Authorization"] = `Bearer ${token}`;
    const init: RequestInit = { method, headers, credentials: "omit", cache: "no-store", redirect: "error" };
    if (options.body !== undefined) {
      headers["Content-Type"] = "application/json";
      init.body = JSON.stringify(options.body);
    }
    if (options.signal !== undefined) init.signal = options.signal;
    const response = await this.fetch(path, init);
    this.adjustClock(response.headers.get("date"));
    this.options.onAnswer?.();
    if (response.ok) return response;
    if (response.status === 401) this.options.onUnauthorized?.();
    throw problem(response.status, await response.text());
  }

  private adjustClock(date: string | null): void {
    const server = date === null ? Number.NaN : Date.parse(date);
    if (Number.isNaN(server)) return;
    const offset = server - this.now();
    this.offset = Math.abs(offset) > CLOCK_TOLERANCE_MS ? offset : 0;
  }
}

/** The error of an answer: `{"error": {"code", "message"}}`, or `{"error": text}` of the dashboard API. */
export function problem(status: number, text: string): ApiError {
  try {
    const { error } = JSON.parse(text) as { error?: string | { code?: string; message?: string } };
    if (typeof error === "string") return new ApiError(status, "", error);
    if (error?.message !== undefined) return new ApiError(status, error.code ?? "", error.message);
  } catch {
    // Another server than ours may have answered; its text is no JSON.
  }
  return new ApiError(status, "", `HTTP ${status}`);
}
