/** Inputs whose value is a parameter of the URL. */

import { useMemo, useRef } from "preact/hooks";
import type { Query } from "../router";

interface FieldProperties {
  label: string;
  name: string;
  query: Query;
  set: (change: Record<string, string | null>) => void;
}

const TYPING_MS = 250;

/** An input that is a parameter of the URL. */
export function Field({
  label,
  name,
  query,
  set,
  search = false,
  ...rest
}: FieldProperties & { search?: boolean; list?: string; placeholder?: string }) {
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  return (
    <label>
      {label}{" "}
      <input
        {...rest}
        {...(search ? { type: "search", "data-search": true } : {})}
        value={query[name] ?? ""}
        onInput={(event) => {
          const { value } = event.currentTarget;
          clearTimeout(timer.current);
          timer.current = setTimeout(() => set({ [name]: value }), TYPING_MS);
        }}
      />
    </label>
  );
}

export function Choice({ label, name, query, set, options, any }: FieldProperties & { options: readonly string[]; any?: string }) {
  const all = useMemo(() => (any === undefined ? options : ["", ...options]), [options, any]);
  return (
    <label>
      {label}{" "}
      <select value={query[name] ?? all[0] ?? ""} onChange={(event) => set({ [name]: event.currentTarget.value })}>
        {all.map((option) => (
          <option value={option} selected={option === (query[name] ?? all[0])}>
            {option === "" ? any : option}
          </option>
        ))}
      </select>
    </label>
  );
}
