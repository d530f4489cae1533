/** A list of any length: only the rows in view are elements. Arrow keys select, Enter opens. */

import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { moved, reveal, visible } from "./window";

export const ROW_HEIGHT = 26;
/** Pixels of a list of the class `short`: as high as its rows, up to a limit. */
const HEAD = 32;
const MOST_SHORT = 240;

interface Properties {
  label: string;
  count: number;
  /** Classes and content of a row. */
  row: (index: number) => { class?: string; content: ComponentChildren; attributes?: Record<string, string | number | boolean> };
  selected?: number;
  onSelect?: (index: number) => void;
  onOpen?: (index: number) => void;
  /** A key that the list does not use; true where it was handled. */
  onKey?: (event: KeyboardEvent, index: number) => boolean;
  /** The last row stays in view as rows are added. */
  follow?: boolean;
  /** The user has scrolled away from the end, or back to it. */
  onFollow?: (follow: boolean) => void;
  /** The first row is in view. */
  onTop?: () => void;
  role?: "listbox" | "tree" | "grid";
  class?: string;
  head?: ComponentChildren;
  empty?: string;
}

const CHILD = { listbox: "option", tree: "treeitem", grid: "row" } as const;
let lists = 0;

export function Rows(properties: Properties) {
  const { count, label, row, selected = -1, role = "listbox", follow = false, onFollow } = properties;
  const view = useRef<HTMLDivElement>(null);
  const [name] = useState(() => `list${(lists += 1)}`);
  const [place, setPlace] = useState({ top: 0, height: 600 });
  const ended = useRef(true);

  useEffect(() => {
    const element = view.current;
    if (element === null) return;
    const observer = new ResizeObserver(() => setPlace({ top: element.scrollTop, height: element.clientHeight }));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);

  useLayoutEffect(() => {
    const element = view.current;
    if (element !== null && follow) element.scrollTop = element.scrollHeight;
  }, [count, follow, place.height]);

  useLayoutEffect(() => {
    const element = view.current;
    if (element === null || selected < 0) return;
    const to = reveal(selected, element.scrollTop, element.clientHeight, ROW_HEIGHT);
    if (to !== null) element.scrollTop = to;
  }, [selected]);

  function scroll(): void {
    const element = view.current;
    if (element === null) return;
    setPlace({ top: element.scrollTop, height: element.clientHeight });
    const atEnd = element.scrollTop + element.clientHeight >= element.scrollHeight - ROW_HEIGHT;
    if (atEnd !== ended.current) {
      ended.current = atEnd;
      onFollow?.(atEnd);
    }
    if (element.scrollTop === 0 && count > 0) properties.onTop?.();
  }

  function key(event: KeyboardEvent): void {
    const page = Math.max(1, Math.floor(place.height / ROW_HEIGHT) - 1);
    const to = moved(event.key, selected, count, page);
    if (to !== null && properties.onSelect !== undefined) properties.onSelect(to);
    else if (event.key === "Enter" && selected >= 0) properties.onOpen?.(selected);
    else if (properties.onKey?.(event, selected) !== true) return;
    event.preventDefault();
  }

  const { first, end } = visible(place.top, place.height, ROW_HEIGHT, count);
  const drawn = [];
  for (let index = first; index < end; index += 1) {
    const { content, attributes, class: name_ } = row(index);
    drawn.push(
      <div
        key={index}
        id={`${name}-${index}`}
        role={CHILD[role]}
        aria-selected={index === selected}
        aria-rowindex={role === "grid" ? index + 2 : undefined}
        aria-posinset={role === "grid" ? undefined : index + 1}
        aria-setsize={role === "grid" ? undefined : count}
        class={`row ${index === selected ? "selected" : ""} ${name_ ?? ""}`}
        style={{ transform: `translateY(${index * ROW_HEIGHT}px)` }}
        onClick={() => properties.onSelect?.(index)}
        onDblClick={() => properties.onOpen?.(index)}
        {...attributes}
      >
        {content}
      </div>,
    );
  }
  return (
    <div
      ref={view}
      class={`rows ${properties.class ?? ""}`}
      role={role}
      aria-label={label}
      aria-rowcount={role === "grid" ? count + 1 : undefined}
      aria-activedescendant={selected >= first && selected < end ? `${name}-${selected}` : undefined}
      tabIndex={0}
      style={properties.class === "short" ? { height: `${Math.min(MOST_SHORT, Math.max(2, count) * ROW_HEIGHT + HEAD)}px` } : undefined}
      onScroll={scroll}
      onKeyDown={key}
    >
      {properties.head}
      {count === 0 && <p class="empty">{properties.empty ?? "nothing here"}</p>}
      <div class="extent" role="presentation" style={{ height: `${count * ROW_HEIGHT}px` }}>
        {drawn}
      </div>
    </div>
  );
}
