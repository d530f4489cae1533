import { expect, test, vi } from "vitest";
import { ApiError, Client, problem } from "../src/api/client";
import { EventParser, read } from "../src/api/events";
import { parse } from "../src/api/json";
import { containing, id, integer, literal, where } from "../src/api/sql";
import { fromFragment, take } from "../src/api/token";
import { Turns } from "../src/api/turns";

const COVERAGE = { hosts_asked: 2, hosts_answered: 1, missing: [{ host: "b", reason: "lost" }], rows_scanned: 1, truncated: false, elapsed_ms: 1, stages: [] };

function answering(...answers: [number, unknown, Record<string, string>?][]) {
  const calls: { path: string; init: RequestInit }[] = [];
  const fetch = async (path: string, init: RequestInit) => {
    calls.push({ path, init });
    const [status, body, headers] = answers.shift() ?? [200, {}];
    return new Response(typeof body === "string" ? body : JSON.stringify(body), { status, headers: headers ?? {} });
  };
  return { calls, fetch };
}

test("the token is a header and never a part of the URL", async () => {
  const { calls, fetch } = answering([200, []]);
  await new Client({ token: () => "secret", fetch }).actors("7");
  expect(calls[0]!.path).toBe("/api/actors?mesh_id=7");
  expect(calls[0]!.init.headers).toMatchObject({ Authorization: "Bearer secret" });
  expect(calls[0]!.init.credentials).toBe("omit");
});

test("references are encoded", async () => {
  const { calls, fetch } = answering([200, {}]);
  await new Client({ token: () => null, fetch }).node("a/b?c");
  expect(calls[0]!.path).toBe("/v1/a%2Fb%3Fc");
  expect(calls[0]!.init.headers).not.toHaveProperty("Authorization");
});

test("coverage of each answer is reported", async () => {
  const onCoverage = vi.fn();
  const { fetch } = answering([200, { rows: [], coverage: COVERAGE }]);
  await new Client({ token: () => null, fetch, onCoverage, now: () => 5 }).query("SELECT 1");
  expect(onCoverage).toHaveBeenCalledWith(COVERAGE, 5);
});

test("coverage of a diagnosis is a number, and none of hosts", async () => {
  const onCoverage = vi.fn();
  const { calls, fetch } = answering([200, { causes: [], coverage: 1 }]);
  await new Client({ token: () => null, fetch, onCoverage }).diagnose();
  expect(calls[0]!.path).toBe("/v1/diagnose");
  expect(onCoverage).not.toHaveBeenCalled();
});

test("a refused token is reported, and an error has the server's text", async () => {
  const onUnauthorized = vi.fn();
  const { fetch } = answering([401, { error: { code: "unauthorized", message: "the scope read is needed" } }]);
  const failure = new Client({ token: () => "x", fetch, onUnauthorized }).summary();
  await expect(failure).rejects.toThrow("the scope read is needed");
  expect(onUnauthorized).toHaveBeenCalledOnce();
});

test("both forms of errors are read, and pages of others", () => {
  expect(problem(404, '{"error": "no actor 7"}')).toMatchObject({ status: 404, message: "no actor 7" });
  expect(problem(400, '{"error": {"code": "bad_request", "message": "no table x"}}')).toMatchObject({ code: "bad_request", message: "no table x" });
  expect(problem(502, "<html>")).toMatchObject({ message: "HTTP 502" });
  expect(problem(502, "null")).toBeInstanceOf(ApiError);
});

test("all pages of an answer are read", async () => {
  const { calls, fetch } = answering([200, { rows: [{ a: 1 }], coverage: COVERAGE, cursor: "c1" }], [200, { rows: [{ a: 2 }], coverage: COVERAGE }]);
  expect(await new Client({ token: () => null, fetch }).queryAll("SELECT a")).toEqual([{ a: 1 }, { a: 2 }]);
  expect(JSON.parse(calls[1]!.init.body as string)).toEqual({ sql: "SELECT a", cursor: "c1" });
});

test("the clock of the server is used where it differs", async () => {
  const { fetch } = answering([200, {}, { date: new Date(100_000).toUTCString() }]);
  const client = new Client({ token: () => null, fetch, now: () => 40_000 });
  expect(client.serverNow()).toBe(40_000_000);
  await client.summary();
  expect(client.serverNow()).toBe(100_000_000);
});

test("identifiers of 64 bits keep their digits", () => {
  expect(parse('{"id": 9223372036854775809, "n": [12, 1.5, 1e300], "t": "9223372036854775809"}')).toEqual({
    id: "9223372036854775809",
    n: [12, 1.5, 1e300],
    t: "9223372036854775809",
  });
});

test("text becomes literals that cannot end early", () => {
  expect(literal("it's '; DROP")).toBe("'it''s ''; DROP'");
  expect(containing("50%_\\'")).toBe("'%50\\%\\_\\\\''%'");
  expect(where([null, "a", "b"])).toBe(" WHERE a AND b");
  expect(where([null])).toBe("");
  expect(integer(1e15 + 0.4)).toBe("1000000000000000");
  expect(() => integer(Number.NaN)).toThrow(RangeError);
  expect(() => id("1 OR 1=1")).toThrow(RangeError);
});

test("events are cut in whatever pieces the bytes come", () => {
  const text = ': hello\n\nevent: failure\nid: 7\ndata: {"a":\ndata: 1}\r\n\r\ndata:x\n\nevent: status\n\n';
  const whole = new EventParser().push(text);
  expect(whole).toEqual([
    { event: "failure", data: '{"a":\n1}', id: "7" },
    { event: "message", data: "x", id: "7" },
  ]);
  for (let size = 1; size < 9; size += 1) {
    const parser = new EventParser();
    const found = [];
    for (let at = 0; at < text.length; at += size) found.push(...parser.push(text.slice(at, at + size)));
    expect(found).toEqual(whole);
  }
});

test("a stream is read to its end", async () => {
  const found: string[] = [];
  await read(new Response("data: é\n\ndata: b\n\n"), (event) => found.push(event.data));
  expect(found).toEqual(["é", "b"]);
});

test("the token leaves the URL for the storage of the tab", () => {
  const kept = new Map<string, string>();
  const storage = { getItem: (key: string) => kept.get(key) ?? null, setItem: (key: string, value: string) => void kept.set(key, value) } as unknown as Storage;
  const replaceState = vi.fn();
  expect(take({ hash: "#token=abc", pathname: "/logs", search: "?mesh=x" }, storage, { replaceState })).toBe("abc");
  expect(replaceState).toHaveBeenCalledWith(null, "", "/logs?mesh=x");
  expect(take({ hash: "", pathname: "/", search: "" }, storage, { replaceState })).toBe("abc");
});

test("only what can be a token is taken from a fragment", () => {
  expect(fromFragment("#Zm9vYmFyYmF6cXV4Cg==")).toBe("Zm9vYmFyYmF6cXV4Cg==");
  expect(fromFragment("#main")).toBeNull();
  expect(fromFragment("")).toBeNull();
});

test("no more tasks run than there are turns, and failures give theirs back", async () => {
  const turns = new Turns(2);
  let [running, most] = [0, 0];
  const task = (fails: boolean) => async () => {
    running += 1;
    most = Math.max(most, running);
    await Promise.resolve();
    running -= 1;
    if (fails) throw new Error("no");
    return 1;
  };
  const results = await Promise.allSettled([true, false, true, false, false, true, false].map((fails) => turns.take(task(fails))));
  expect(most).toBe(2);
  expect(results.filter((result) => result.status === "fulfilled")).toHaveLength(4);
  expect(await turns.take(task(false))).toBe(1);
});

test("a task that was given up while it waited does not run", async () => {
  const turns = new Turns(1);
  const controller = new AbortController();
  let end = () => {};
  const first = turns.take(() => new Promise<void>((done) => (end = done)));
  const task = vi.fn();
  const second = turns.take(task, controller.signal);
  controller.abort();
  end();
  await first;
  await expect(second).rejects.toThrow();
  expect(task).not.toHaveBeenCalled();
});
