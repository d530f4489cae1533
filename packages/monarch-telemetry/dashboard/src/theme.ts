/** Dark and light: the system's choice, unless the button chose. */

import { Observable } from "./live/observable";

export type Theme = "system" | "light" | "dark";

const KEY = "monarch.theme";
export const theme = new Observable<Theme>("system");

function apply(value: Theme): void {
  if (value === "system") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = value;
}

export function startTheme(): void {
  const stored = localStorage.getItem(KEY);
  const value: Theme = stored === "light" || stored === "dark" ? stored : "system";
  apply(value);
  theme.set(value);
  // Canvases have their colors fixed when they are drawn.
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    if (theme.get() === "system") repaint.set(repaint.get() + 1);
  });
}

export function chooseTheme(value: Theme): void {
  localStorage.setItem(KEY, value);
  apply(value);
  theme.set(value);
  repaint.set(repaint.get() + 1);
}

/** Grows when colors have changed. */
export const repaint = new Observable(0);

/** The present value of a color of the style sheet, for canvases. */
export function color(name: string): string {
  const probe = document.createElement("span");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}
