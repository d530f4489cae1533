import { Fragment, h, options, type VNode } from "preact";
import { expect, test } from "vitest";
import { flat, shown } from "../src/parts/Facts";
import { rangeOf } from "../src/parts/Range";
import { bytes, clock, csv, duration, plural, short } from "../src/text/format";
import { compress } from "../src/text/ranks";
import { statusClass } from "../src/text/status";
import { showUnseen, visible } from "../src/text/visible";

test("unseen characters are shown as escapes", () => {
  expect(visible("a\u202egpj.exe\u0000\u001b[2J\ud800\u{e0041}")).toBe("a\\u202egpj.exe\\u0000\\u001b[2J\\ud800\\u{e0041}");
  expect(visible("two\nlines\twith é 漢 😀")).toBe("two\nlines\twith é 漢 😀");
});

test("text of elements is shown so wherever it stands", () => {
  showUnseen();
  const hostile = "x\u202ey";
  const made = h("p", { title: hostile, class: hostile }, hostile, h(Fragment, null, [hostile, [hostile]])) as VNode<any>;
  delete options.vnode;
  const [text, inner] = made.props.children;
  expect([made.props.title, made.props.class, text, inner.props.children]).toEqual(["x\\u202ey", hostile, "x\\u202ey", ["x\\u202ey", ["x\\u202ey"]]]);
});

test("sizes and counts are short", () => {
  expect([0, 1023, 1024, 1536 * 1024, 5e15].map(bytes)).toEqual(["0 B", "1023 B", "1.0 KiB", "1.5 MiB", "4.4 PiB"]);
  expect([0, 999, 1000, 12_345, 999_999, 2.5e6].map(short)).toEqual(["0", "999", "1.0k", "12.3k", "1.0M", "2.5M"]);
  expect(short(0.12345)).toBe("0.123");
  expect([bytes(null), short(undefined)]).toEqual(["", ""]);
});

test("durations take the unit that reads well", () => {
  const given = [0, 999, 1500, 3_200_000, 59_990_000, 250e6, 7_500e6, 100_000e6, -1500];
  expect(given.map(duration)).toEqual(["0 us", "999 us", "1.5 ms", "3.2 s", "60 s", "4 min 10 s", "2 h 5 min", "1 d 3 h", "-1.5 ms"]);
});

test("the time of day has milliseconds", () => {
  expect(clock(new Date(2024, 0, 2, 3, 4, 5, 6).getTime() * 1000)).toBe("03:04:05.006");
});

test("fields of a CSV file are quoted where they must be", () => {
  expect(csv(["a", "b,c"], [{ a: 'x"y', "b,c": null }, { a: 1, "b,c": { k: [1] } }])).toBe('a,"b,c"\r\n"x""y",\r\n1,"{""k"":[1]}"\r\n');
});

test("ranks are compressed", () => {
  expect(compress([5, 3, 4, 0, 3])).toBe("0,3-5");
  expect(compress([])).toBe("");
});

test("a status has the color of its first word", () => {
  expect(["Failed: x", "idle", "Stopped(…)", "strange", null].map(statusClass)).toEqual(["bad", "good", "ended", "unknown", "unknown"]);
});

test("facts are shown by what their names state", () => {
  expect(shown("rss_bytes", 2048)).toBe("2.0 KiB");
  expect(shown("pid", 12345)).toBe("12345");
  expect(shown("total_processing_time_us", 1500)).toBe("1.5 ms");
  expect(flat({ a: 1, memory: { rss_bytes: 2, none: null } })).toEqual([
    ["a", 1],
    ["memory.rss_bytes", 2],
  ]);
});

test("a range is what the URL has, or the last minutes", () => {
  expect(rangeOf({ from: "10", to: "20" }, 99)).toEqual({ from_us: 10, to_us: 20, moving: false });
  expect(rangeOf({ last: "60" }, 100e6)).toEqual({ from_us: 40e6, to_us: 100e6, moving: true });
  expect(rangeOf({ from: "20", to: "10", last: "x" }, 1000e6)).toMatchObject({ from_us: 100e6, moving: true });
  expect(plural(1, "host")).toBe("1 host");
});
