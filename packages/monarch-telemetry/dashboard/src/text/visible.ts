/** Characters that a page would not show, or that change the direction of what is beside them: names and lines are written by programs. */

import { options, type VNode } from "preact";

// C0 without tab and ends of lines, DEL, C1, marks of direction, separators, joiners, byte order marks, annotations, half pairs, tags.
const UNSEEN =
  /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]|\p{Cs}/gu;
// Attributes that people read.
const READ = ["title", "aria-label", "alt", "label"];

/** The text with an escape in the place of each such character: `\u202e`. */
export function visible(text: string): string {
  return text.replace(UNSEEN, (one) => {
    const code = one.codePointAt(0)!;
    return code > 0xffff ? `\\u{${code.toString(16)}}` : `\\u${code.toString(16).padStart(4, "0")}`;
  });
}

function shown(children: unknown): unknown {
  if (typeof children === "string") return visible(children);
  return Array.isArray(children) ? children.map(shown) : children;
}

/** Has all text of the page shown so, wherever a component puts it. */
export function showUnseen(): void {
  const before = options.vnode;
  options.vnode = (vnode: VNode) => {
    const props = vnode.props as unknown as Record<string, unknown>;
    if (props?.children !== undefined) props.children = shown(props.children);
    if (typeof vnode.type === "string") {
      for (const name of READ) if (typeof props[name] === "string") props[name] = visible(props[name]);
    }
    before?.(vnode);
  };
}
