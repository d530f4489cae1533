import { expect, test } from "vitest";
import { href, PAGES, parse } from "../src/router";

test("the root is the overview", () => {
  expect(parse("/", "")).toEqual({ page: "overview", rest: [], query: {} });
  expect(href("overview")).toBe("/");
});

test("a path with reserved letters comes back", () => {
  const url = new URL(href("explorer", ["node", "a/b c?#é"], { mesh: "<root>.<x>" }), "http://host");
  expect(parse(url.pathname, url.search)).toEqual({ page: "explorer", rest: ["node", "a/b c?#é"], query: { mesh: "<root>.<x>" } });
});

test("no page has the path of a route of the server", () => {
  for (const page of PAGES) expect(href(page)).not.toMatch(/^\/(metrics|api|v1|healthz)(\/|$)/);
  for (const page of PAGES) expect(parse(href(page), "").page).toBe(page);
});

test("empty parameters are left out", () => {
  expect(href("logs", [], { mesh: "", rank: null, text: "a b" })).toBe("/logs?text=a+b");
});

test("unknown pages and malformed paths have no page", () => {
  expect(parse("/nothing", "").page).toBeNull();
  expect(parse("/logs/%E0%A4%A", "").rest).toEqual(["%E0%A4%A"]);
});
