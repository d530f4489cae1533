/** A table of any number of rows. */

import type { ComponentChildren } from "preact";
import { Rows } from "./Rows";

export interface Column<R> {
  title: string;
  cell: (row: R) => ComponentChildren;
  /** A length of CSS grid; `1fr` without. */
  width?: string;
  number?: boolean;
}

interface Properties<R> {
  label: string;
  columns: readonly Column<R>[];
  rows: readonly R[];
  rowClass?: (row: R) => string;
  selected?: number;
  onSelect?: (index: number) => void;
  onOpen?: (index: number) => void;
  class?: string;
  empty?: string;
}

export function Table<R>({ columns, rows, label, rowClass, ...rest }: Properties<R>) {
  const style = { gridTemplateColumns: columns.map((column) => column.width ?? "minmax(6rem, 1fr)").join(" ") };
  const head = (
    <div class="head cells" role="row" aria-rowindex={1} style={style}>
      {columns.map((column) => (
        <div role="columnheader" class={column.number ? "number" : ""}>
          {column.title}
        </div>
      ))}
    </div>
  );
  return (
    <Rows
      {...rest}
      role="grid"
      label={label}
      count={rows.length}
      head={head}
      row={(index) => {
        const row = rows[index]!;
        const content = (
          <div class="cells" role="presentation" style={style}>
            {columns.map((column) => {
              const shown = column.cell(row);
              return (
                <div role="gridcell" class={column.number ? "number" : ""} title={typeof shown === "string" ? shown : undefined}>
                  {shown}
                </div>
              );
            })}
          </div>
        );
        return rowClass === undefined ? { content } : { content, class: rowClass(row) };
      }}
    />
  );
}
