import { expect, test, vi } from "vitest";
import type { Coverage } from "../src/api/types";
import { Freshness } from "../src/live/freshness";
import { merge } from "../src/live/keep";
import { Observable } from "../src/live/observable";
import { Schedule } from "../src/live/schedule";

function coverage(...missing: string[]): Coverage {
  const hosts = missing.map((host) => ({ host, reason: "no answer" }));
  return { hosts_asked: 3, hosts_answered: 3 - missing.length, missing: hosts, rows_scanned: 0, truncated: false, elapsed_ms: 1, stages: [] };
}

test("the age of a silent host begins with its last answer", () => {
  const freshness = new Freshness();
  freshness.note(coverage(), 100);
  expect(freshness.note(coverage("b"), 200)).toEqual([{ host: "b", reason: "no answer", answered: 100 }]);
  expect(freshness.note(coverage("b", "c"), 300).map((silent) => silent.answered)).toEqual([100, 200]);
  expect(freshness.note(coverage("c"), 400).map((silent) => silent.host)).toEqual(["c"]);
  expect(freshness.note(coverage("b", "c"), 500)[0]).toMatchObject({ host: "b", answered: 400 });
});

test("nothing is known of a host that never answered", () => {
  expect(new Freshness().note(coverage("a"), 5)[0]!.answered).toBeNull();
});

test("the same news is the same list", () => {
  const freshness = new Freshness();
  const first = freshness.note(coverage("a"), 1);
  expect(freshness.note(coverage("a"), 2)).toBe(first);
  expect(freshness.note({ ...coverage(), hosts_asked: 0 }, 3)).toBe(first);
});

test("rows of a silent host stay with their time, and go when the host is gone", () => {
  const host = (row: { name: string }) => row.name;
  const silent = { host: "b", reason: "lost", answered: 1 };
  const before = merge([], [{ name: "a" }, { name: "b" }], [], host, 10);
  const after = merge(before, [{ name: "a" }], [silent], host, 20);
  expect(after).toEqual([
    { row: { name: "a" }, at: 20, silent: null },
    { row: { name: "b" }, at: 10, silent },
  ]);
  expect(merge(after, [{ name: "a" }], [], host, 30).map((kept) => kept.row.name)).toEqual(["a"]);
});

class FakeClock {
  time = 0;
  private timers: { at: number; then: () => void }[] = [];
  now = () => this.time;
  after = (ms: number, then: () => void) => {
    const timer = { at: this.time + ms, then };
    this.timers.push(timer);
    return () => {
      this.timers = this.timers.filter((one) => one !== timer);
    };
  };
  /** Moves the time, with what becomes due. */
  async pass(ms: number): Promise<void> {
    const end = this.time + ms;
    for (;;) {
      const next = this.timers.filter((timer) => timer.at <= end).sort((a, b) => a.at - b.at)[0];
      if (next === undefined) break;
      this.timers = this.timers.filter((timer) => timer !== next);
      this.time = next.at;
      next.then();
      for (let turn = 0; turn < 5; turn += 1) await Promise.resolve();
    }
    this.time = end;
  }
}

test("loads come at the interval, and none in a hidden tab", async () => {
  const clock = new FakeClock();
  const load = vi.fn(async () => {});
  const schedule = new Schedule(load, 5000, clock);
  await schedule.now();
  await clock.pass(10_100);
  expect(load).toHaveBeenCalledTimes(3);
  schedule.setHidden(true);
  schedule.soon();
  await clock.pass(60_000);
  expect(load).toHaveBeenCalledTimes(3);
  schedule.setHidden(false);
  await clock.pass(0);
  expect(load).toHaveBeenCalledTimes(4);
  schedule.stop();
  await clock.pass(60_000);
  expect(load).toHaveBeenCalledTimes(4);
});

test("a burst of events is one load", async () => {
  const clock = new FakeClock();
  const load = vi.fn(async () => {});
  const schedule = new Schedule(load, 0, clock);
  await schedule.now();
  for (let event = 0; event < 50; event += 1) schedule.soon();
  await clock.pass(5000);
  expect(load).toHaveBeenCalledTimes(2);
});

test("a load that is wanted during another one comes after it", async () => {
  const clock = new FakeClock();
  let end = () => {};
  const load = vi.fn(() => new Promise<void>((done) => (end = done)));
  const schedule = new Schedule(load, 0, clock);
  const first = schedule.now();
  schedule.soon();
  void schedule.now();
  expect(load).toHaveBeenCalledTimes(1);
  end();
  await first;
  await clock.pass(2000);
  expect(load).toHaveBeenCalledTimes(2);
});

test("subscribers get changes only, until they leave", () => {
  const value = new Observable(1);
  const found: number[] = [];
  const leave = value.subscribe((next) => found.push(next));
  value.set(1);
  value.set(2);
  leave();
  value.set(3);
  expect(found).toEqual([2]);
});
