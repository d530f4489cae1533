import type { ComponentChildren } from "preact";

export function Panel({ title, children, class: name = "" }: { title: string; children: ComponentChildren; class?: string }) {
  return (
    <section class={`panel ${name}`} aria-label={title}>
      <h2>{title}</h2>
      {children}
    </section>
  );
}
