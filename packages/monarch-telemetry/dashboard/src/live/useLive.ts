/** Data of a page, loaded again while the tab is visible. */

import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { Schedule } from "./schedule";
import { onEvent } from "./session";

export interface Live<T> {
  data: T | null;
  /** Of the last load; the data of the load before stays. */
  error: Error | null;
  loading: boolean;
  /** Local milliseconds at which the data came. */
  at: number;
  reload: () => void;
}

interface Options {
  /** Milliseconds between loads; 0 loads once. */
  every?: number;
  /** Whether events of the stream cause a load. */
  events?: boolean;
  /** Keep the data of other inputs until the new data is there. */
  keep?: boolean;
}

/** Loads at once when an input changes. Inputs are compared one by one. */
export function useLive<T>(load: (signal: AbortSignal) => Promise<T>, inputs: readonly unknown[], options: Options = {}): Live<T> {
  const { every = 0, events = false, keep = false } = options;
  const [state, setState] = useState<Omit<Live<T>, "reload">>({ data: null, error: null, loading: true, at: 0 });
  const schedule = useRef<Schedule | null>(null);

  useEffect(() => {
    const controller = new AbortController();
    setState((old) => ({ data: keep ? old.data : null, error: null, loading: true, at: old.at }));
    const current = new Schedule(async () => {
      try {
        const data = await load(controller.signal);
        if (!controller.signal.aborted) setState({ data, error: null, loading: false, at: Date.now() });
      } catch (error) {
        if (!controller.signal.aborted) setState((old) => ({ ...old, error: error as Error, loading: false }));
      }
    }, every);
    schedule.current = current;
    const visibility = () => current.setHidden(document.hidden);
    visibility();
    document.addEventListener("visibilitychange", visibility);
    const unsubscribe = events ? onEvent(() => current.soon()) : () => {};
    void current.now();
    return () => {
      controller.abort();
      current.stop();
      document.removeEventListener("visibilitychange", visibility);
      unsubscribe();
    };
  }, [...inputs, every, events, keep]);

  const reload = useCallback(() => void schedule.current?.now(), []);
  return { ...state, reload };
}
