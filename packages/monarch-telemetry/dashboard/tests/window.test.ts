import { expect, test } from "vitest";
import { moved, reveal, visible } from "../src/parts/window";

test("the rows in view are drawn, and few others", () => {
  for (const scrollTop of [0, 13, 2600, 129_999, 260_000]) {
    const { first, end } = visible(scrollTop, 500, 26, 10_000);
    expect(first).toBeLessThanOrEqual(Math.floor(scrollTop / 26));
    expect(end).toBeGreaterThanOrEqual(Math.min(10_000, Math.ceil((scrollTop + 500) / 26)));
    expect(end - first).toBeLessThan(80);
  }
});

test("a list that became shorter draws nothing behind its end", () => {
  expect(visible(90_000, 500, 26, 3)).toEqual({ first: 2, end: 3 });
  expect(visible(0, 500, 26, 0)).toEqual({ first: 0, end: 0 });
});

test("keys select within the list", () => {
  expect(moved("ArrowDown", -1, 10, 5)).toBe(0);
  expect(moved("PageDown", 8, 10, 5)).toBe(9);
  expect(moved("ArrowUp", 0, 10, 5)).toBe(0);
  expect(moved("End", 0, 10, 5)).toBe(9);
  expect(moved("x", 0, 10, 5)).toBeNull();
  expect(moved("End", -1, 0, 5)).toBeNull();
});

test("a row out of view is brought to the nearer edge", () => {
  expect(reveal(0, 100, 260, 26)).toBe(0);
  expect(reveal(20, 0, 260, 26)).toBe(21 * 26 - 260);
  expect(reveal(5, 0, 260, 26)).toBeNull();
});
